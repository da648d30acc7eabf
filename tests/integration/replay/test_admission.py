"""Which dream episodes are stored, and how what is not is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dreamgym.core.errors import InvalidInputError
from dreamgym.v1 import replay_pb2 as pb
from support.replay import ENRICH, append, dream, episode, listed, refused

if TYPE_CHECKING:  # the asynchronous stub exists only for the type checker
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub

pytestmark = pytest.mark.integration


async def counted(replay: ReplayAsyncStub, environment_id: str) -> dict[str, tuple[int, int]]:
    statistics = await replay.Statistics(pb.StatisticsRequest(environment_id=environment_id))
    return {one.code: (one.episodes, one.transitions) for one in statistics.rejections}


async def test_dreams_stay_out_unless_the_environment_takes_them(replay: ReplayAsyncStub, environment_id: str) -> None:
    answer = await append(replay, [episode(environment_id, "seed"), dream(environment_id, "dream")])
    assert answer.episodes_stored == 1
    assert [(one.episode_id, one.code) for one in answer.rejected] == [("dream", "real_only")]
    assert "'dream': The environment takes no dream episodes." in answer.rejected[0].reason
    assert await listed(replay, environment_id) == ["seed"]
    assert await counted(replay, environment_id) == {"real_only": (1, 2)}


async def test_an_enriched_environment_takes_the_dreams_that_pass_and_counts_the_others(
    replay: ReplayAsyncStub, environment_id: str
) -> None:
    admission = pb.Admission(enrich=True, minimum_confidence=0.6)
    sent = [
        dream(environment_id, "good", confidence=0.7),
        dream(environment_id, "unsure", confidence=0.5),
        dream(environment_id, "broken", termination="infrastructure"),
        dream(environment_id, "endless", termination=""),
        episode(environment_id, "seed", confidence=0.1),
    ]
    answer = await append(replay, sent, admission)
    assert answer.episodes_stored == 2
    assert {one.episode_id: one.code for one in answer.rejected} == {
        "unsure": "low_confidence",
        "broken": "unfinished",
        "endless": "unfinished",
    }
    assert await listed(replay, environment_id) == ["good", "seed"]
    assert await counted(replay, environment_id) == {"low_confidence": (1, 2), "unfinished": (2, 4)}
    again = await append(replay, sent[:1], None)  # it is there: a stricter policy does not throw it out
    assert (again.episodes_already_stored, len(again.rejected)) == (1, 0)


async def test_an_environment_holds_no_more_dreams_than_its_limit(replay: ReplayAsyncStub, environment_id: str) -> None:
    admission = pb.Admission(enrich=True, dream_transitions_max=5)
    names = [f"dream{n}" for n in range(4)]
    answer = await append(replay, [dream(environment_id, name) for name in names[:3]], admission)
    assert (answer.transitions_stored, [one.code for one in answer.rejected]) == (4, ["dream_full"])
    assert "holds 4 dream transitions of at most 5" in answer.rejected[0].reason
    assert (await append(replay, [episode(environment_id, "seed")], admission)).episodes_stored == 1
    await replay.Delete(pb.DeleteRequest(environment_id=environment_id, episode_ids=["dream0"]))
    assert (await append(replay, [dream(environment_id, "dream3")], admission)).episodes_stored == 1
    assert await counted(replay, environment_id) == {"dream_full": (1, 2)}


async def test_what_is_refused_among_others_leaves_their_embeddings_in_place(
    replay: ReplayAsyncStub, environment_id: str
) -> None:
    steps = [[(f"room {n}", f"take cup {n}"), (f"room {n}", f"wash cup {n}")] for n in range(3)]
    admission = pb.Admission(enrich=True, dream_transitions_max=2)
    dreams = [dream(environment_id, f"dream{n}", steps[n]) for n in (0, 1)]
    await append(replay, [*dreams, episode(environment_id, "seed", steps[2])], admission)
    request = pb.SearchRequest(
        environment_id=environment_id, queries=[pb.SearchQuery(state="room 2", action="take cup 2")], top_k=1
    )
    hit = (await replay.Search(request)).results[0].hits[0]
    assert (hit.episode_id, hit.transition.action) == ("seed", "take cup 2")
    assert hit.similarity > 0.999


async def test_an_unreadable_episode_is_counted_too(replay: ReplayAsyncStub, environment_id: str) -> None:
    answer = await append(
        replay, [episode(environment_id, "bad", termination="tired"), episode(environment_id, "good")]
    )
    assert [one.code for one in answer.rejected] == ["invalid"]
    nameless = await append(replay, [episode("", "nowhere")])
    assert [one.code for one in nameless.rejected] == ["invalid"]
    assert await counted(replay, environment_id) == {"invalid": (1, 2)}
    await replay.Delete(pb.DeleteRequest(environment_id=environment_id, whole_environment=True))
    assert await counted(replay, environment_id) == {}


async def test_a_sample_is_drawn_by_its_seed(replay: ReplayAsyncStub, environment_id: str) -> None:
    await append(replay, [episode(environment_id, f"e{n}") for n in range(30)])
    await append(replay, [dream(environment_id, f"d{n}", confidence=0.9) for n in range(30)], ENRICH)

    async def drawn(seed: int, count: int = 10, **fields: object) -> list[int]:
        request = pb.SampleRequest(environment_id=environment_id, count=count, seed=seed, **fields)  # type: ignore[arg-type]
        return [one.transition.id for one in (await replay.Sample(request)).transitions]

    first = await drawn(1)
    assert len(set(first)) == 10
    assert await drawn(1) == first
    assert await drawn(2) != first
    assert first == (await drawn(1, count=20))[:10]
    cursor = (await replay.Statistics(pb.StatisticsRequest(environment_id=environment_id))).cursor
    seen = await drawn(1, cursor=cursor)
    await append(replay, [episode(environment_id, f"later{n}") for n in range(30)])
    assert await drawn(1, cursor=cursor) == seen
    request = pb.SampleRequest(environment_id=environment_id, count=500, sources=[pb.SOURCE_DREAM])
    assert {one.source for one in (await replay.Sample(request)).transitions} == {pb.SOURCE_DREAM}
    assert len(await drawn(1, count=500, minimum_confidence=0.95)) == 120
    assert await drawn(1, count=500) != sorted(await drawn(1, count=500))
    wanted = [first[3], first[0], 2**60]
    got = await replay.Get(pb.GetRequest(environment_id=environment_id, transition_ids=wanted))
    assert [one.transition.id for one in got.transitions] == wanted[:2]
    assert all(one.episode_id.startswith(("e", "d")) for one in got.transitions)
    assert not (await replay.Get(pb.GetRequest(environment_id="never seen", transition_ids=wanted))).transitions
    nothing = pb.SampleRequest(environment_id="never seen", count=1)
    assert not (await replay.Sample(nothing)).transitions
    too_many = replay.Sample(pb.SampleRequest(environment_id=environment_id, count=10**6))
    assert isinstance(await refused(too_many), InvalidInputError)
