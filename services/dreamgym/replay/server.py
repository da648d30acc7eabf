"""Serves the replay store over gRPC: `python -m dreamgym.replay.server`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from dreamgym.core.errors import InvalidInputError
from dreamgym.replay.admission import Offer
from dreamgym.replay.embedding import Embedder
from dreamgym.replay.encoder import make_encoder
from dreamgym.replay.listing import Selection
from dreamgym.replay.reading import (
    is_name,
    read_admission,
    read_cursor,
    read_environment_id,
    read_episode,
    read_episode_ids,
    read_filters,
    read_queries,
    read_sample,
    read_sources,
    read_splits,
    read_top_k,
    read_transition_ids,
)
from dreamgym.replay.records import Refusal, RejectionCode, Stored
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.store import ReplayStore
from dreamgym.replay.writing import episode_message, found_messages, search_response, statistics_response
from dreamgym.v1 import replay_pb2 as pb
from dreamgym.v1 import replay_pb2_grpc
from dreamgym.wire.logs import configure_logs
from dreamgym.wire.server import serve_until_stopped, start_server

log = logging.getLogger(__name__)
SERVICE = pb.DESCRIPTOR.services_by_name["Replay"].full_name


class ReplayServicer(replay_pb2_grpc.ReplayServicer):
    """Translates between messages and the store."""

    def __init__(self, store: ReplayStore, settings: ReplaySettings) -> None:
        self.store = store
        self.settings = settings

    async def Append(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.AppendRequest], context: Any
    ) -> pb.AppendResponse:
        """Store batch by batch while the stream arrives; if it breaks, sending it again completes it."""
        batch: list[Offer] = []
        transitions = characters = 0
        stored, environment_ids = Stored(), set()
        invalid: dict[str, list[Refusal]] = {}
        async for request in request_iterator:
            try:
                admission = read_admission(request.admission)
                episode = read_episode(request.episode, self.settings)
            except InvalidInputError as error:
                sent = request.episode
                refusal = Refusal(sent.episode_id, RejectionCode.INVALID, str(error), len(sent.transitions))
                invalid.setdefault(sent.environment_id, []).append(refusal)
                continue
            batch.append(Offer(episode, admission))
            environment_ids.add(episode.environment_id)
            transitions += len(episode.transitions)
            characters += request.ByteSize()
            full = transitions >= self.settings.replay_batch_transitions
            if full or characters >= self.settings.replay_batch_characters:
                stored += await self.store.append(batch)
                batch, transitions, characters = [], 0, 0
        if batch:
            stored += await self.store.append(batch)
        if stored.episodes:
            await self.store.finish_append(environment_ids)
        for environment_id, left_out in invalid.items():
            stored += Stored(refusals=tuple(left_out))
            if is_name(environment_id):
                await self.store.count_refusals(environment_id, left_out)
        return pb.AppendResponse(
            episodes_stored=stored.episodes,
            transitions_stored=stored.transitions,
            episodes_already_stored=stored.already_stored,
            rejected=[
                pb.Rejection(episode_id=refusal.episode_id, reason=refusal.reason, code=refusal.code.value)
                for refusal in stored.refusals
            ],
        )

    async def Search(self, request: pb.SearchRequest, context: Any) -> pb.SearchResponse:  # noqa: N802
        results = await self.store.search(
            read_environment_id(request.environment_id),
            read_queries(request, self.settings),
            read_top_k(request, self.settings),
            read_filters(request),
        )
        return search_response(results)

    async def Sample(self, request: pb.SampleRequest, context: Any) -> pb.SampleResponse:  # noqa: N802
        count, filters = read_sample(request, self.settings)
        environment_id = read_environment_id(request.environment_id)
        drawn = await self.store.sample(environment_id, count, filters, request.seed)
        return pb.SampleResponse(transitions=found_messages(drawn))

    async def Get(self, request: pb.GetRequest, context: Any) -> pb.GetResponse:  # noqa: N802
        found = await self.store.get(
            read_environment_id(request.environment_id), read_transition_ids(request, self.settings)
        )
        return pb.GetResponse(transitions=found_messages(found))

    async def ListEpisodes(  # noqa: N802
        self, request: pb.ListEpisodesRequest, context: Any
    ) -> AsyncIterator[pb.StoredEpisode]:
        if request.limit < 0:
            raise InvalidInputError(f"limit is {request.limit}.", remedy="Give the number of episodes, or 0 for all.")
        selection = Selection(
            sources=read_sources(request.sources),
            splits=read_splits(request.splits),
            job_id=request.job_id,
            cursor=read_cursor(request.cursor),
            limit=request.limit,
            after_episode_id=request.after_episode_id,
        )
        async for episode in self.store.list_episodes(read_environment_id(request.environment_id), selection):
            yield episode_message(episode)

    async def Statistics(self, request: pb.StatisticsRequest, context: Any) -> pb.StatisticsResponse:  # noqa: N802
        return statistics_response(await self.store.statistics(read_environment_id(request.environment_id)))

    async def Reembed(  # noqa: N802
        self, request: pb.ReembedRequest, context: Any
    ) -> AsyncIterator[pb.ReembedProgress]:
        async for progress in self.store.reembed(read_environment_id(request.environment_id)):
            yield pb.ReembedProgress(done=progress.done, total=progress.total, encoder=progress.encoder)

    async def Delete(self, request: pb.DeleteRequest, context: Any) -> pb.DeleteResponse:  # noqa: N802
        environment_id = read_environment_id(request.environment_id)
        if request.whole_environment == bool(request.episode_ids):
            raise InvalidInputError(
                "A deletion names either episodes or the whole environment.",
                remedy="Give episode_ids, or set whole_environment, and not both.",
            )
        if request.whole_environment:
            transitions, episodes = await self.store.delete_environment(environment_id)
        else:
            transitions, episodes = await self.store.delete_episodes(
                environment_id, read_episode_ids(request.episode_ids)
            )
        return pb.DeleteResponse(transitions_deleted=transitions, episodes_deleted=episodes)


async def start(settings: ReplaySettings, address: str | None = None) -> tuple[grpc.aio.Server, int, ReplayStore]:
    """Start the service on `address` (default: its setting); answers server, port and the store to close at the end."""
    encoder = await asyncio.to_thread(make_encoder, settings.encoder)
    store = ReplayStore(settings, Embedder(encoder, settings.encoder_cache_texts))
    servicer = ReplayServicer(store, settings)
    server, port = await start_server(
        address or settings.replay_address,
        settings,
        [lambda server: replay_pb2_grpc.add_ReplayServicer_to_server(servicer, server)],
        [SERVICE],
    )
    return server, port, store


async def main() -> None:
    settings = ReplaySettings()
    configure_logs("replay", settings.log_level)
    server, _, store = await start(settings)
    await serve_until_stopped(server, settings, store.close)


if __name__ == "__main__":
    uvloop.run(main())
