"""What the replay service keeps: appending, listing, counting, deleting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dreamgym.core.errors import (
    InvalidInputError,
    NotFoundError,
)
from dreamgym.v1 import replay_pb2 as pb
from support.replay import Serve, append, episode, listed, refused, search

if TYPE_CHECKING:  # the asynchronous stub exists only for the type checker
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub


pytestmark = pytest.mark.integration


async def test_an_episode_comes_back_as_it_was_stored(replay: ReplayAsyncStub, environment_id: str) -> None:
    sent = pb.StoredEpisode(
        environment_id=environment_id, episode_id="e", task_id="t", instruction="Nimm das Glas 🥛", source=pb.SOURCE_REAL,
        split="test", termination="success", success=True, job_id="j", policy_version="p", model_version="m",
        metadata='{"by":"hand"}',
        transitions=[
            pb.StoredTransition(
                step=3, state="s", action="a", reasoning="r", next_state="n", reward=-1.5, done=True, success=True,
                confidence=0.25, valid_action=True,
            )
        ],
    )  # fmt: skip
    await append(replay, [sent])
    (found,) = [one async for one in replay.ListEpisodes(pb.ListEpisodesRequest(environment_id=environment_id))]
    assert found.transitions[0].id > 0
    found.transitions[0].id = 0
    assert found == sent


async def test_a_repeated_append_stores_nothing_twice_and_says_so(replay: ReplayAsyncStub, environment_id: str) -> None:
    episodes = [episode(environment_id, "one"), episode(environment_id, "two"), episode(environment_id, "one")]
    first = await append(replay, episodes)
    assert (first.episodes_stored, first.transitions_stored, first.episodes_already_stored) == (2, 4, 1)
    again = await append(replay, episodes)
    assert (again.episodes_stored, again.transitions_stored, again.episodes_already_stored) == (0, 0, 3)
    assert await listed(replay, environment_id) == ["one", "two"]


async def test_concurrent_appends_of_the_same_episodes_to_a_new_environment_store_them_once(
    replay: ReplayAsyncStub, environment_id: str
) -> None:
    episodes = [episode(environment_id, f"e{number}") for number in range(30)]
    answers = await asyncio.gather(*(append(replay, episodes) for _ in range(6)))
    assert sum(answer.episodes_stored for answer in answers) == 30
    assert sum(answer.episodes_already_stored for answer in answers) == 150
    statistics = await replay.Statistics(pb.StatisticsRequest(environment_id=environment_id))
    assert statistics.counts[0].transitions == 60


async def test_a_bad_episode_is_reported_with_its_reason_and_the_others_are_kept(
    replay: ReplayAsyncStub, environment_id: str
) -> None:
    bad = episode(environment_id, "bad")
    bad.transitions[1].reward = float("nan")
    answer = await append(replay, [episode(environment_id, "good"), bad, episode(environment_id, "nul", [("\0", "a")])])
    assert answer.episodes_stored == 1
    reasons = {one.episode_id: one.reason for one in answer.rejected}
    assert "'bad': step 1: reward nan" in reasons["bad"]
    assert "'nul': step 0: state has a NUL character" in reasons["nul"]
    assert await listed(replay, environment_id) == ["good"]


async def test_an_append_larger_than_a_batch_is_stored_whole(serve: Serve, environment_id: str) -> None:
    replay, _ = await serve(replay_batch_transitions=7)
    answer = await append(replay, [episode(environment_id, f"e{number}") for number in range(25)])
    assert (answer.episodes_stored, answer.transitions_stored) == (25, 50)
    assert await listed(replay, environment_id) == [f"e{number}" for number in range(25)]


async def test_a_listing_can_be_read_page_by_page(replay: ReplayAsyncStub, environment_id: str) -> None:
    names = [f"e{number:03}" for number in range(250)]
    await append(replay, [episode(environment_id, name, job_id=name[-1]) for name in names])
    pages, after = [], ""
    while page := await listed(replay, environment_id, limit=120, after_episode_id=after):
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [120, 120, 10]
    assert [name for page in pages for name in page] == names
    assert await listed(replay, environment_id, job_id="7", limit=3) == ["e007", "e017", "e027"]
    assert isinstance(await refused(listed(replay, environment_id, after_episode_id="gone")), NotFoundError)


async def test_statistics_count_by_source_and_split(replay: ReplayAsyncStub, environment_id: str) -> None:
    await append(
        replay,
        [
            episode(environment_id, "1", success=True),
            episode(environment_id, "2"),
            episode(environment_id, "3", split="test"),
        ],
    )
    statistics = await replay.Statistics(pb.StatisticsRequest(environment_id=environment_id))
    assert [(one.split, one.episodes, one.transitions, one.successes) for one in statistics.counts] == [
        ("test", 1, 2, 0),
        ("train", 2, 4, 1),
    ]
    assert statistics.encoder == "hashing-1"
    assert statistics.cursor > 0


async def test_deleted_data_is_gone_and_may_be_stored_again(replay: ReplayAsyncStub, environment_id: str) -> None:
    await append(replay, [episode(environment_id, "one"), episode(environment_id, "two")])
    answer = await replay.Delete(pb.DeleteRequest(environment_id=environment_id, episode_ids=["one", "unknown"]))
    assert (answer.episodes_deleted, answer.transitions_deleted) == (1, 2)
    assert {hit.episode_id for hit in await search(replay, environment_id, "a room", "look")} == {"two"}
    answer = await replay.Delete(pb.DeleteRequest(environment_id=environment_id, whole_environment=True))
    assert (answer.episodes_deleted, answer.transitions_deleted) == (1, 2)
    assert await search(replay, environment_id, "a room", "look") == []
    assert (await append(replay, [episode(environment_id, "one")])).episodes_stored == 1
    both = pb.DeleteRequest(environment_id=environment_id, episode_ids=["one"], whole_environment=True)
    assert isinstance(await refused(replay.Delete(both)), InvalidInputError)


async def test_environments_do_not_see_each_other(replay: ReplayAsyncStub, environment_id: str) -> None:
    other = environment_id + "2"
    await append(replay, [episode(environment_id, "same id"), episode(other, "same id", [("x", "y")])])
    assert len(await search(replay, environment_id, "a room", "look")) == 2
    assert len(await search(replay, other, "a room", "look")) == 1
    assert await search(replay, environment_id + "3", "a room", "look") == []
