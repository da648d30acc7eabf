"""Stored transitions similar to a step, searched for many episodes at once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from dreamgym.core.dream_prompt import Demonstration
from dreamgym.core.episodes import Source
from dreamgym.v1 import replay_pb2, replay_pb2_grpc
from dreamgym.wire.convert import source_to_proto
from dreamgym.wire.errors import error_from_rpc

MAX_BATCH = 256


@dataclass(frozen=True)
class RetrievalScope:
    """What one episode's retrieval may see; queries of the same scope can share a search."""

    environment_id: str
    k: int
    sources: tuple[Source, ...] = (Source.SEED, Source.REAL)
    cursor: int = 0
    splits: tuple[str, ...] = ("train",)
    dream_share_cap: float = 0.0
    """Largest share of dreams among the k, which are sought beside `sources` if it is above 0."""


@dataclass(frozen=True)
class Hit:
    """A stored transition that grounds a step."""

    id: int
    demonstration: Demonstration


class Retriever(Protocol):
    """Finds what similar actions led to."""

    async def similar(
        self, scope: RetrievalScope, state: str, action: str, *, exclude_episode_id: str = "", exclude_task_id: str = ""
    ) -> Sequence[Hit]:
        """The k most similar transitions, the most similar first. Raises UnavailableError or DeadlineError."""
        ...


@dataclass
class _Waiting:
    query: replay_pb2.SearchQuery
    answer: asyncio.Future[list[Hit]]


class ReplayRetriever:
    """Asks the replay service; queries that arrive within `window_s` of each other travel in one request."""

    def __init__(self, channel: grpc.aio.Channel, *, window_s: float = 0.004, deadline_s: float = 60.0) -> None:
        self._replay = replay_pb2_grpc.ReplayStub(channel)
        self._window_s = window_s
        self._deadline_s = deadline_s
        self._waiting: dict[RetrievalScope, list[_Waiting]] = defaultdict(list)
        self._senders: set[asyncio.Task[None]] = set()

    async def similar(
        self, scope: RetrievalScope, state: str, action: str, *, exclude_episode_id: str = "", exclude_task_id: str = ""
    ) -> list[Hit]:
        if scope.k <= 0:
            return []
        query = replay_pb2.SearchQuery(
            state=state, action=action, exclude_episode_id=exclude_episode_id, exclude_task_id=exclude_task_id
        )
        waiting = _Waiting(query, asyncio.get_running_loop().create_future())
        queue = self._waiting[scope]
        queue.append(waiting)
        if len(queue) == 1:
            sender = asyncio.create_task(self._send_soon(scope))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await waiting.answer

    async def _send_soon(self, scope: RetrievalScope) -> None:
        await asyncio.sleep(self._window_s)
        batch = [waiting for waiting in self._waiting.pop(scope, []) if not waiting.answer.done()]
        for start in range(0, len(batch), MAX_BATCH):
            await self._send(scope, batch[start : start + MAX_BATCH])

    async def _send(self, scope: RetrievalScope, batch: list[_Waiting]) -> None:
        sources = {*scope.sources, Source.DREAM} if scope.dream_share_cap else scope.sources
        request = replay_pb2.SearchRequest(
            environment_id=scope.environment_id,
            queries=[waiting.query for waiting in batch],
            top_k=scope.k,
            sources=[source_to_proto(source) for source in sources],
            cursor=scope.cursor,
            splits=scope.splits,
            dream_share_cap=1.0 if Source.DREAM in scope.sources else scope.dream_share_cap,
        )
        try:
            response = await self._replay.Search(request, timeout=self._deadline_s)
            answers = [[_hit(hit) for hit in hits.hits] for hits in response.results]
            if len(answers) != len(batch):
                raise ValueError(f"{len(answers)} results for {len(batch)} queries")
        except grpc.RpcError as error:
            _fail(batch, error_from_rpc(error, service="replay"))
        except Exception as error:
            _fail(batch, error)
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


def demonstrations(hits: Sequence[Hit]) -> list[Demonstration]:
    """Hits as a prompt shows them: the most similar one last, next to the question, as in training."""
    return [hit.demonstration for hit in reversed(hits)]


def _hit(hit: replay_pb2.SearchHit) -> Hit:
    return Hit(hit.transition.id, Demonstration(hit.transition.action, hit.transition.next_state))
