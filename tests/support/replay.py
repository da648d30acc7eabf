"""What the replay service's tests share: episodes, and calls that they make again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from dreamgym.core.errors import (
    DreamGymError,
)
from dreamgym.replay.store import ReplayStore
from dreamgym.v1 import replay_pb2 as pb
from dreamgym.wire.errors import error_from_rpc

if TYPE_CHECKING:  # the asynchronous stub exists only for the type checker
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub


Serve = Callable[..., Awaitable[tuple["ReplayAsyncStub", ReplayStore]]]


def episode(
    environment_id: str, episode_id: str, steps: Sequence[tuple[str, str]] = (), **fields: Any
) -> pb.StoredEpisode:
    values: dict[str, Any] = {"source": pb.SOURCE_SEED, "split": "train", "task_id": "task", **fields}
    confidence = values.pop("confidence", 1.0)
    return pb.StoredEpisode(
        environment_id=environment_id,
        episode_id=episode_id,
        transitions=[
            pb.StoredTransition(
                step=step,
                state=state,
                action=action,
                next_state=f"after {action}",
                confidence=confidence,
                valid_action=True,
            )
            for step, (state, action) in enumerate(steps or [("a room", "look"), ("a room", "go to shelf 1")])
        ],
        **values,
    )


ENRICH = pb.Admission(enrich=True)
"""Takes every dream that came to an end."""


async def append(
    replay: ReplayAsyncStub, episodes: Iterable[pb.StoredEpisode], admission: pb.Admission | None = None
) -> pb.AppendResponse:
    requests = [pb.AppendRequest(episode=one, admission=admission) for one in episodes]
    return await replay.Append(iter(requests), timeout=60)


def dream(
    environment_id: str, episode_id: str, steps: Sequence[tuple[str, str]] = (), **fields: Any
) -> pb.StoredEpisode:
    """A dreamed episode that came to an end."""
    values = {"source": pb.SOURCE_DREAM, "termination": "step_limit", **fields}
    return episode(environment_id, episode_id, steps, **values)


async def search(
    replay: ReplayAsyncStub, environment_id: str, state: str, action: str, **fields: Any
) -> list[pb.SearchHit]:
    query = {name: fields.pop(name) for name in ("exclude_episode_id", "exclude_task_id") if name in fields}
    values = {"top_k": 4, "dream_share_cap": 1.0, **fields}
    request = pb.SearchRequest(
        environment_id=environment_id, queries=[pb.SearchQuery(state=state, action=action, **query)], **values
    )
    return list((await replay.Search(request, timeout=20)).results[0].hits)


async def listed(replay: ReplayAsyncStub, environment_id: str, **fields: Any) -> list[str]:
    request = pb.ListEpisodesRequest(environment_id=environment_id, **fields)
    return [one.episode_id async for one in replay.ListEpisodes(request, timeout=20)]


async def refused(call: Awaitable[object]) -> DreamGymError:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return error_from_rpc(caught.value, service="replay")
