"""The replay service over gRPC with a real PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from dreamgym.core.errors import (
    ConflictError,
    DreamGymError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from dreamgym.embedded.migrate import find_alembic_ini, migrate
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.replay.embedding import Embedder
from dreamgym.replay.encoder import HashingEncoder
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.server import ReplayServicer
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.store import ReplayStore
from dreamgym.v1 import replay_pb2 as pb
from dreamgym.v1.replay_pb2_grpc import ReplayStub, add_ReplayServicer_to_server
from dreamgym.wire.errors import error_from_rpc
from dreamgym.wire.settings import ServiceSettings

if TYPE_CHECKING:  # the asynchronous stub exists only for the type checker
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub

pytestmark = pytest.mark.integration

Serve = Callable[..., Awaitable[tuple["ReplayAsyncStub", ReplayStore]]]


class OtherEncoder(HashingEncoder):
    name = "other-1"


@pytest.fixture
def environment_id() -> str:
    return f"kitchen'; -- {uuid.uuid4()}"


@pytest.fixture
async def serve(
    service_settings: ServiceSettings, grpc_server: Callable[..., Awaitable[grpc.aio.Channel]]
) -> AsyncIterator[Serve]:
    stores = []

    async def start(encoder: HashingEncoder | None = None, **changes: Any) -> tuple[ReplayAsyncStub, ReplayStore]:
        settings = ReplaySettings(**{**service_settings.model_dump(), **changes})
        store = ReplayStore(settings, Embedder(encoder or HashingEncoder(), settings.encoder_cache_texts))
        stores.append(store)
        servicer = ReplayServicer(store, settings)
        channel = await grpc_server(settings, lambda server: add_ReplayServicer_to_server(servicer, server))
        return ReplayStub(channel), store

    yield start
    for store in stores:
        await store.close()


@pytest.fixture
async def replay(serve: Serve) -> ReplayAsyncStub:
    stub, _ = await serve()
    return stub


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


async def append(replay: ReplayAsyncStub, episodes: Iterable[pb.StoredEpisode]) -> pb.AppendResponse:
    return await replay.Append(iter([pb.AppendRequest(episode=one) for one in episodes]), timeout=60)


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
            episode(environment_id, "dream", source=pb.SOURCE_DREAM, task_id="", confidence=0.5),
        ],
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
    dreams = [episode(environment_id, f"dream{n}", source=pb.SOURCE_DREAM) for n in range(5)]
    await append(
        replay, [*dreams, episode(environment_id, "seed", [("elsewhere", "wait"), ("elsewhere", "wait more")])]
    )

    async def sources(top_k: int, cap: float) -> list[int]:
        hits = await search(replay, environment_id, "a room", "look", top_k=top_k, dream_share_cap=cap)
        return sorted(hit.source for hit in hits)

    seed, dream = pb.SOURCE_SEED, pb.SOURCE_DREAM
    assert await sources(4, 0.5) == [seed, seed, dream, dream]
    assert await sources(4, 0.25) == [seed, seed]
    assert await sources(8, 0.5) == [seed, seed, dream, dream]
    assert await sources(4, 1.0) == [dream] * 4


async def test_a_cursor_shows_the_store_as_it_was(replay: ReplayAsyncStub, environment_id: str) -> None:
    await append(replay, [episode(environment_id, "old")])
    cursor = (await replay.Statistics(pb.StatisticsRequest(environment_id=environment_id))).cursor
    await append(replay, [episode(environment_id, "new")])
    hits = await search(replay, environment_id, "a room", "look", cursor=cursor)
    assert {hit.episode_id for hit in hits} == {"old"}
    assert await listed(replay, environment_id, cursor=cursor) == ["old"]
    assert await listed(replay, environment_id) == ["old", "new"]


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


async def test_another_encoder_is_refused_with_a_remedy(serve: Serve, environment_id: str) -> None:
    replay, _ = await serve()
    await append(replay, [episode(environment_id, "one")])
    other, _ = await serve(OtherEncoder())
    for call in (append(other, [episode(environment_id, "two")]), search(other, environment_id, "a room", "look")):
        error = await refused(call)
        assert isinstance(error, ConflictError)
        assert "'hashing-1'" in error.message
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


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterable[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "state")
    server.start()
    yield server
    server.wipe()


async def test_the_service_survives_the_death_of_postgres(
    serve: Serve, environment_id: str, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    own_postgres.ensure_database("dreamgym")
    url = own_postgres.url("dreamgym")
    migrate(url, find_alembic_ini(), tmp_path / "alembic.log")
    replay, _ = await serve(database_url=url)
    await append(replay, [episode(environment_id, "before")])

    pid = own_postgres.pid()
    assert pid is not None
    everyone = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs(everyone, timeout=20)
    error = await refused(search(replay, environment_id, "a room", "look"))
    assert isinstance(error, UnavailableError)
    assert "database does not answer" in error.message
    assert "Postgres" in error.remedy
    assert isinstance(await refused(append(replay, [episode(environment_id, "lost")])), UnavailableError)

    own_postgres.start()
    assert own_postgres.url("dreamgym") == url
    assert len(await search(replay, environment_id, "a room", "look")) == 2
    assert (await append(replay, [episode(environment_id, "after")])).episodes_stored == 1
    assert await listed(replay, environment_id) == ["before", "after"]


async def test_a_restart_of_postgres_between_two_calls_is_not_noticed(
    serve: Serve, environment_id: str, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    own_postgres.ensure_database("dreamgym")
    url = own_postgres.url("dreamgym")
    migrate(url, find_alembic_ini(), tmp_path / "alembic.log")
    replay, _ = await serve(database_url=url)
    await append(replay, [episode(environment_id, "before")])
    own_postgres.stop()
    own_postgres.start()
    assert len(await search(replay, environment_id, "a room", "look")) == 2


def test_the_migration_goes_down_and_up_and_agrees_with_the_models(
    embedded_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    embedded_postgres.ensure_database("migrations")
    url = embedded_postgres.url("migrations")
    migrate(url, find_alembic_ini(), tmp_path / "alembic.log")
    configuration = Config(str(find_alembic_ini()), cmd_opts=Namespace(x=["schema=replay"]))
    configuration.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.check(configuration)
    command.downgrade(configuration, "replay@base")
    engine = create_engine(url)
    with engine.connect() as connection:
        left = connection.scalar(text("SELECT count(*) FROM pg_class WHERE relnamespace = 'replay'::regnamespace"))
    engine.dispose()
    assert left == 0
    command.upgrade(configuration, "heads")
    command.check(configuration)
