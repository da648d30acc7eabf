"""What the replay service finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from dreamgym.core.errors import (
    ConflictError,
    InvalidInputError,
)
from dreamgym.replay.encoder import HashingEncoder
from dreamgym.replay.partitions import partition_name
from dreamgym.v1 import replay_pb2 as pb
from support.replay import ENRICH, Serve, append, dream, episode, listed, refused, search

if TYPE_CHECKING:  # the asynchronous stub exists only for the type checker
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub


pytestmark = pytest.mark.integration


class OtherEncoder(HashingEncoder):
    name = "other-1"


async def test_the_most_similar_transition_comes_first(replay: ReplayAsyncStub, environment_id: str) -> None:
    steps = [("you stand at shelf 1", "take book 2 from shelf 1"), ("you hold an apple", "heat apple 1 with stove 1")]
    await append(replay, [episode(environment_id, "e", steps, instruction="read")])
    hits = await search(replay, environment_id, "you stand at shelf 4", "take book 1 from shelf 4")
    assert [hit.transition.action for hit in hits] == [steps[0][1], steps[1][1]]
    assert hits[0].similarity > 0.6 > hits[1].similarity
    assert (hits[0].episode_id, hits[0].instruction, hits[0].source) == ("e", "read", pb.SOURCE_SEED)
    (same, _) = await search(replay, environment_id, *steps[1])
    assert same.similarity == pytest.approx(1.0, abs=2e-3)


async def test_every_filter_holds(replay: ReplayAsyncStub, environment_id: str) -> None:
    await append(
        replay,
        [
            episode(environment_id, "seed", task_id="a"),
            episode(environment_id, "real", source=pb.SOURCE_REAL, task_id="b", split="test"),
            dream(environment_id, "dream", task_id="", confidence=0.5),
        ],
        ENRICH,
    )

    async def found(**fields: Any) -> set[str]:
        hits = await search(replay, environment_id, "a room", "look", **{"top_k": 10, **fields})
        return {hit.episode_id for hit in hits}

    assert await found() == {"seed", "real", "dream"}
    assert await found(sources=[pb.SOURCE_SEED, pb.SOURCE_DREAM]) == {"seed", "dream"}
    assert await found(splits=["test"]) == {"real"}
    assert await found(exclude_episode_id="seed") == {"real", "dream"}
    assert await found(exclude_task_id="b") == {"seed", "dream"}
    assert await found(minimum_confidence=0.6) == {"seed", "real"}
    assert await found(dream_share_cap=0.0) == {"seed", "real"}


async def test_dreams_are_at_most_their_share_of_the_results(replay: ReplayAsyncStub, environment_id: str) -> None:
    dreams = [dream(environment_id, f"dream{n}") for n in range(5)]
    seed_steps = [("elsewhere", "wait"), ("elsewhere", "wait more")]
    await append(replay, [*dreams, episode(environment_id, "seed", seed_steps)], ENRICH)

    async def sources(top_k: int, cap: float) -> list[int]:
        hits = await search(replay, environment_id, "a room", "look", top_k=top_k, dream_share_cap=cap)
        return sorted(hit.source for hit in hits)

    seed, dreamt = pb.SOURCE_SEED, pb.SOURCE_DREAM
    assert await sources(4, 0.5) == [seed, seed, dreamt, dreamt]
    assert await sources(4, 0.25) == [seed, seed]
    assert await sources(8, 0.5) == [seed, seed, dreamt, dreamt]
    assert await sources(4, 1.0) == [dreamt] * 4


async def test_a_cursor_shows_the_store_as_it_was(replay: ReplayAsyncStub, environment_id: str) -> None:
    await append(replay, [episode(environment_id, "old")])
    cursor = (await replay.Statistics(pb.StatisticsRequest(environment_id=environment_id))).cursor
    await append(replay, [episode(environment_id, "new")])
    hits = await search(replay, environment_id, "a room", "look", cursor=cursor)
    assert {hit.episode_id for hit in hits} == {"old"}
    assert await listed(replay, environment_id, cursor=cursor) == ["old"]
    assert await listed(replay, environment_id) == ["old", "new"]


async def test_another_encoder_is_refused_with_a_remedy(serve: Serve, environment_id: str) -> None:
    replay, _ = await serve()
    await append(replay, [episode(environment_id, "one")])
    other, _ = await serve(OtherEncoder())
    for call in (append(other, [episode(environment_id, "two")]), search(other, environment_id, "a room", "look")):
        error = await refused(call)
        assert isinstance(error, ConflictError)
        assert "'hashing-1'" in error.message
        assert "`reembed`" in error.remedy
        assert "DREAMGYM_ENCODER=hashing" in error.remedy


async def test_a_large_environment_gets_an_index_and_is_searched_through_it(
    serve: Serve, environment_id: str, database_url: str
) -> None:
    replay, store = await serve(replay_index_from_transitions=600)
    episodes = [
        episode(environment_id, f"e{n}", [(f"room {n} holds {n * 7919 % 1009}", f"take cup {n} from shelf {n % 50}")])
        for n in range(1000)
    ]
    exact_replay, _ = await serve(replay_index_from_transitions=10**9)
    await append(exact_replay, episodes[:599])
    await store.indexer.idle()
    names = "SELECT indexdef FROM pg_indexes WHERE tablename = :name AND indexdef LIKE '%hnsw%'"
    engine = create_engine(database_url)
    with engine.connect() as connection:
        assert not connection.scalars(text(names), {"name": partition_name(environment_id)}).all()
    await append(replay, episodes[599:])
    await store.indexer.idle()
    with engine.begin() as connection:
        assert len(connection.scalars(text(names), {"name": partition_name(environment_id)}).all()) == 2
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        connection.execute(text("SET LOCAL enable_sort = off"))
        table = f"replay.{partition_name(environment_id)}"
        plan = connection.scalars(
            text(
                f"EXPLAIN SELECT t.id FROM (SELECT embedding FROM {table} LIMIT 2) q, LATERAL (SELECT id FROM {table} t"
                " WHERE source <> 'dream' ORDER BY t.embedding <=> q.embedding LIMIT 4) t"
            )
        ).all()
        assert any("hnsw" in line for line in plan), plan
    engine.dispose()
    (hit, *_) = await search(replay, environment_id, "room 700 holds 703", "take cup 700 from shelf 0")
    assert hit.episode_id == "e700"
    await append(replay, [episode(environment_id, "rare", [("far away", "sing")], split="rare")])
    hits = await search(replay, environment_id, "room 700 holds 703", "take cup 700 from shelf 0", splits=["rare"])
    assert [hit.episode_id for hit in hits] == ["rare"]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"top_k": 0}, "top_k is 0"),
        ({"dream_share_cap": 2.0}, "dream_share_cap"),
        ({"cursor": -1}, "cursor"),
        ({"sources": [9]}, "source 9"),
    ],
)
async def test_a_search_that_makes_no_sense_is_refused(
    replay: ReplayAsyncStub, environment_id: str, fields: dict[str, Any], part: str
) -> None:
    error = await refused(search(replay, environment_id, "a room", "look", **fields))
    assert isinstance(error, InvalidInputError)
    assert part in error.message
    assert error.remedy


async def test_an_empty_action_is_refused(replay: ReplayAsyncStub, environment_id: str) -> None:
    error = await refused(search(replay, environment_id, "a room", "  "))
    assert "Query 0: action is empty" in error.message
