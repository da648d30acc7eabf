"""The bridge over gRPC: real processes, real Postgres, a corridor for a world."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import uuid
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
import psycopg
import pytest
from alembic import command
from alembic.config import Config
from prometheus_client import REGISTRY
from sqlalchemy import create_engine, make_url, text

from dreamgym.bridge.guard import ActionPolicy, Rule
from dreamgym.bridge.server import SERVICE_NAME, BridgeService
from dreamgym.bridge.settings import BridgeSettings
from dreamgym.embedded.migrate import find_alembic_ini
from dreamgym.embedded.ports import choose_port
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.replay import server as replay
from dreamgym.replay.settings import ReplaySettings
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.v1 import replay_pb2 as replay_pb
from dreamgym.v1.environment_pb2_grpc import EnvironmentStub, add_EnvironmentServicer_to_server
from dreamgym.v1.replay_pb2_grpc import ReplayStub
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import dump_json
from dreamgym.wire.server import start_server
from dreamgym.wire.settings import ServiceSettings

pytestmark = pytest.mark.integration
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
HERE = Path(__file__).parent
Stored = Callable[[str], Awaitable[list[replay_pb.StoredEpisode]]]


@pytest.fixture
def settings(service_settings: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BridgeSettings:
    services = HERE.parents[1] / "services"
    monkeypatch.setenv("PYTHONPATH", f"{services}{os.pathsep}{HERE}")
    return BridgeSettings(
        **{
            **service_settings.model_dump(),
            "state_dir": tmp_path / "state",
            "bridge_address": "127.0.0.1:0",
            "bridge_adapters": {"corridor": "corridor:CorridorAdapter"},
            "bridge_record_retry_s": 0.05,
        }
    )


@asynccontextmanager
async def serving(settings: BridgeSettings) -> AsyncIterator[Any]:
    """A bridge on a free port and a client of it."""
    service = BridgeService(settings)
    service.start()
    server, port = await start_server(
        "127.0.0.1:0", settings, [lambda server: add_EnvironmentServicer_to_server(service, server)], [SERVICE_NAME]
    )
    channel = open_channel(f"127.0.0.1:{port}", settings)
    try:
        yield EnvironmentStub(channel)
    finally:
        await channel.close(None)
        await server.stop(None)
        await service.close()


def corridor(length: int = 3, *, job: str = "", budget: int = 100, **fields: Any) -> pb.Reset:
    task = pb.Task(id="walk", instruction="Walk to the end.", metadata=dump_json({"length": length}), split="train")
    values = {"environment_id": "halls", "adapter": "corridor", "job_id": job or uuid.uuid4().hex, "task": task}
    return pb.Reset(**{**values, "episode_id": uuid.uuid4().hex, "transition_budget": budget, **fields})


@dataclass
class Played:
    """What came over one stream."""

    observations: list[pb.Observation] = field(default_factory=list)
    failure: pb.Failure | None = None

    @property
    def last(self) -> pb.Observation:
        return self.observations[-1]


async def play(stub: Any, reset: pb.Reset, actions: Sequence[str]) -> Played:
    """Send a reset and the actions one by one until the episode or the actions end."""
    call = stub.Play()
    played = Played()
    moves = [pb.PlayRequest(reset=reset), *(pb.PlayRequest(act=pb.Act(action=action)) for action in actions)]
    for move in moves:
        await call.write(move)
        response = await call.read()
        if response.WhichOneof("result") == "failure":
            played.failure = response.failure
            break
        played.observations.append(response.observation)
        if response.observation.done:
            break
    await call.done_writing()
    assert await call.read() == EOF
    return played


class Rows:
    """Reads what the bridge wrote, through a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("postgresql+psycopg", "postgresql")

    def __call__(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url) as connection:
            return connection.execute(query, values).fetchall()


@pytest.fixture
def rows(database_url: str) -> Rows:
    return Rows(database_url)


async def until(condition: Callable[[], bool | Awaitable[bool]], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while True:
            result = condition()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(0.02)


async def test_an_episode_is_played_to_success_and_every_action_is_audited(
    settings: BridgeSettings, rows: Rows
) -> None:
    reset = corridor(2, budget=10, policy_version="policy-7")
    async with serving(settings) as stub:
        played = await play(stub, reset, ["forward", "jump", "forward"])
    assert [seen.state for seen in played.observations] == [
        "You are at 0 of 2.",
        "You are at 1 of 2.",
        "You are at 1 of 2.",
        "You are at 2 of 2.",
    ]
    assert [seen.valid_action for seen in played.observations] == [True, True, False, True]
    assert (played.last.done, played.last.success, played.last.reward) == (True, True, 1.0)
    assert played.last.termination == pb.TERMINATION_REASON_SUCCESS
    assert list(played.observations[0].admissible_actions) == ["back", "forward"]
    audit = rows(
        "SELECT step, action, disposition, state_excerpt, next_state_excerpt, reward, done, valid_action,"
        " policy_version, answered_at >= asked_at FROM bridge.audit WHERE job_id = %s ORDER BY step",
        reset.job_id,
    )
    start, middle, end = (f"You are at {place} of 2." for place in range(3))
    assert audit == [
        (0, "forward", "sent", start, middle, 0.0, False, True, "policy-7", True),
        (1, "jump", "sent", middle, middle, 0.0, False, False, "policy-7", True),
        (2, "forward", "sent", middle, end, 1.0, True, True, "policy-7", True),
    ]
    budget = rows(
        "SELECT budget_id, transition_limit, transitions_used FROM bridge.budgets WHERE job_id = %s", reset.job_id
    )
    assert budget == [("default", 10, 3)]
    session = rows(
        "SELECT episode_id, termination, ended_at >= started_at, worker_pid > 0 FROM bridge.sessions WHERE job_id = %s",
        reset.job_id,
    )
    assert session == [(reset.episode_id, "success", True, True)]


async def test_an_episode_ends_at_the_step_limit_of_the_reset_or_else_of_the_adapter(settings: BridgeSettings) -> None:
    async with serving(settings) as stub:
        short = await play(stub, corridor(50, max_steps=3), ["forward"] * 20)
        long = await play(stub, corridor(50), ["forward"] * 20)
    assert (len(short.observations), len(long.observations)) == (1 + 3, 1 + 8)
    for played in (short, long):
        assert played.last.termination == pb.TERMINATION_REASON_STEP_LIMIT
        assert (played.last.done, played.last.success) == (True, False)


async def test_sixteen_streams_that_race_for_25_transitions_send_exactly_25(
    settings: BridgeSettings, rows: Rows
) -> None:
    crowd = settings.model_copy(update={"bridge_pool_size": 4})
    async with serving(crowd) as stub:
        job = uuid.uuid4().hex
        resets = [corridor(99, job=job, budget=25, max_steps=4) for _ in range(16)]
        all_played = await asyncio.gather(*(play(stub, reset, ["forward"] * 4) for reset in resets))
    steps = sum(len(played.observations) - 1 for played in all_played)
    failures = [played.failure for played in all_played if played.failure is not None]
    assert steps == 25
    assert {(failure.code, failure.termination) for failure in failures} == {
        ("budget_exhausted", pb.TERMINATION_REASON_BUDGET)
    }
    assert rows("SELECT count(*) FROM bridge.audit WHERE job_id = %s", job) == [(25,)]
    assert rows("SELECT transitions_used FROM bridge.budgets WHERE job_id = %s", job) == [(25,)]
    assert rows("SELECT count(*) FROM bridge.sessions WHERE job_id = %s AND ended_at IS NULL", job) == [(0,)]


async def test_clients_that_leave_at_any_moment_leave_the_books_balanced(settings: BridgeSettings, rows: Rows) -> None:
    chance, job = random.Random(7), uuid.uuid4().hex
    # A time to live that no test reaches: sessions must be closed by their own end.
    async with serving(settings.model_copy(update={"bridge_pool_size": 4, "bridge_session_ttl_s": 3600})) as stub:

        async def leave_early() -> None:
            with suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(chance.uniform(0.0, 1.5)):
                    await play(stub, corridor(99, job=job, budget=40), ["forward"] * 8)

        await asyncio.gather(*(leave_early() for _ in range(24)))
        after = await play(stub, corridor(1), ["forward"])
    assert after.last.success
    sent = rows("SELECT count(*) FROM bridge.audit WHERE job_id = %s AND disposition = 'sent'", job)
    assert sent == rows("SELECT transitions_used FROM bridge.budgets WHERE job_id = %s", job)
    assert sent[0][0] <= 40
    assert rows("SELECT count(*) FROM bridge.sessions WHERE job_id = %s AND ended_at IS NULL", job) == [(0,)]
    unanswered = "SELECT count(*) FROM bridge.audit WHERE job_id = %s AND answered_at IS NULL"
    assert rows(unanswered, job) == [(0,)]


async def test_a_budget_of_zero_shows_the_first_state_and_allows_no_step(settings: BridgeSettings, rows: Rows) -> None:
    reset = corridor(budget=0)
    async with serving(settings) as stub:
        played = await play(stub, reset, ["forward"])
    assert len(played.observations) == 1
    assert played.failure is not None
    assert played.failure.code == "budget_exhausted"
    assert rows("SELECT termination FROM bridge.sessions WHERE job_id = %s", reset.job_id) == [("budget",)]


async def test_a_second_reset_with_another_limit_is_refused(settings: BridgeSettings, rows: Rows) -> None:
    first = corridor(budget=5)
    async with serving(settings) as stub:
        await play(stub, first, ["forward"])
        other = await play(stub, corridor(job=first.job_id, budget=6), [])
        stage = await play(stub, corridor(job=first.job_id, budget=6, budget_id="stage-2"), ["forward"])
    assert other.failure is not None
    assert other.failure.code == "conflict"
    assert stage.failure is None
    limits = rows("SELECT budget_id, transition_limit FROM bridge.budgets WHERE job_id = %s ORDER BY 1", first.job_id)
    assert limits == [("default", 5), ("stage-2", 6)]


async def test_a_restarted_bridge_keeps_the_budgets(settings: BridgeSettings) -> None:
    job = uuid.uuid4().hex
    async with serving(settings) as stub:
        first = await play(stub, corridor(99, job=job, budget=5, max_steps=3), ["forward"] * 3)
    async with serving(settings) as stub:
        second = await play(stub, corridor(99, job=job, budget=5, max_steps=3), ["forward"] * 3)
    assert len(first.observations) - 1 == 3
    assert len(second.observations) - 1 == 2
    assert second.failure is not None
    assert second.failure.termination == pb.TERMINATION_REASON_BUDGET


async def test_a_worker_killed_in_mid_episode_fails_this_episode_only(settings: BridgeSettings, rows: Rows) -> None:
    reset = corridor(5)
    async with serving(settings) as stub:
        call = stub.Play()
        await call.write(pb.PlayRequest(reset=reset))
        await call.read()
        ((pid,),) = rows("SELECT worker_pid FROM bridge.sessions WHERE episode_id = %s", reset.episode_id)
        os.kill(pid, signal.SIGKILL)
        await call.write(pb.PlayRequest(act=pb.Act(action="forward")))
        response = await call.read()
        after = await play(stub, corridor(1), ["forward"])
    assert response.failure.code == "adapter_failed"
    assert response.failure.termination == pb.TERMINATION_REASON_INFRASTRUCTURE
    assert response.failure.retryable
    assert after.last.success
    ((termination,),) = rows("SELECT termination FROM bridge.sessions WHERE episode_id = %s", reset.episode_id)
    assert termination == "infrastructure"


@pytest.mark.parametrize(
    ("action", "code"), [("hang", "deadline"), ("crash", "adapter_failed"), ("raise", "adapter_failed")]
)
async def test_an_engine_that_hangs_crashes_or_raises_is_a_failure_and_is_replaced(
    settings: BridgeSettings, rows: Rows, action: str, code: str
) -> None:
    strict = settings.model_copy(update={"bridge_step_deadline_s": 0.5, "bridge_pool_size": 1})
    reset = corridor(5)
    async with serving(strict) as stub:
        played = await play(stub, reset, ["forward", action])
        after = await play(stub, corridor(1), ["forward"])
    assert played.failure is not None
    assert (played.failure.code, played.failure.termination) == (code, pb.TERMINATION_REASON_INFRASTRUCTURE)
    assert after.last.success
    (row,) = rows("SELECT error <> '', reward FROM bridge.audit WHERE job_id = %s AND step = 1", reset.job_id)
    assert row == (True, None)
    assert not psutil.pid_exists(rows("SELECT worker_pid FROM bridge.sessions WHERE job_id = %s", reset.job_id)[0][0])


async def test_what_an_engine_prints_does_not_reach_the_protocol(settings: BridgeSettings) -> None:
    async with serving(settings) as stub:
        played = await play(stub, corridor(1), ["print", "forward"])
    assert played.last.success


async def test_a_worker_is_reused_and_replaced_after_its_episodes(settings: BridgeSettings) -> None:
    worn = settings.model_copy(update={"bridge_pool_size": 1, "bridge_episodes_per_worker": 2})
    async with serving(worn) as stub:
        said = [(await play(stub, corridor(9), ["pid"])).last.state for _ in range(4)]
    assert said[0] == said[1] != said[2] == said[3]


async def test_a_full_bridge_queues_a_reset_and_refuses_it_after_a_wait(settings: BridgeSettings) -> None:
    full = settings.model_copy(update={"bridge_pool_size": 1, "bridge_capacity_wait_s": 0.3})
    async with serving(full) as stub:
        first = stub.Play()
        await first.write(pb.PlayRequest(reset=corridor(5)))
        await first.read()
        info = await stub.Describe(pb.DescribeRequest(environment_id="halls", adapter="corridor"))
        refused = await play(stub, corridor(1), [])
        queued = asyncio.create_task(play(stub, corridor(1), ["forward"]))
        await first.done_writing()
        played = await queued
    assert info.capacity_left == 0
    assert (info.kind, info.max_steps, info.lists_admissible_actions) == (pb.ENVIRONMENT_KIND_REAL, 8, True)
    assert refused.failure is not None
    assert (refused.failure.code, refused.failure.retryable) == ("capacity", True)
    assert played.last.success


async def test_a_cancelled_stream_frees_its_worker_and_closes_its_session(settings: BridgeSettings, rows: Rows) -> None:
    reset = corridor(5)
    async with serving(settings.model_copy(update={"bridge_pool_size": 1})) as stub:
        call = stub.Play()
        await call.write(pb.PlayRequest(reset=reset))
        await call.read()
        call.cancel()
        after = await play(stub, corridor(1), ["forward"])
    assert after.last.success
    ended = rows("SELECT termination FROM bridge.sessions WHERE episode_id = %s", reset.episode_id)
    assert ended == [("cancelled",)]


async def test_a_client_that_falls_silent_loses_its_worker(settings: BridgeSettings) -> None:
    async with serving(settings.model_copy(update={"bridge_idle_limit_s": 0.2, "bridge_pool_size": 1})) as stub:
        silent = stub.Play()
        await silent.write(pb.PlayRequest(reset=corridor(5)))
        await silent.read()
        response = await silent.read()
        after = await play(stub, corridor(1), ["forward"])
    assert response.failure.code == "deadline"
    assert after.last.success


async def test_one_stream_is_one_episode(settings: BridgeSettings) -> None:
    async with serving(settings) as stub:
        early, twice = stub.Play(), stub.Play()
        await early.write(pb.PlayRequest(act=pb.Act(action="forward")))
        refused_early = await early.read()
        for _ in range(2):
            await twice.write(pb.PlayRequest(reset=corridor(5)))
            refused_twice = await twice.read()
    assert refused_early.failure.code == "invalid_input"
    assert refused_twice.failure.code == "invalid_input"


async def test_a_denied_action_is_not_sent_and_costs_nothing(settings: BridgeSettings, rows: Rows) -> None:
    policy = ActionPolicy(deny=(Rule(pattern="^back$", reason="One way only."),), dry_run=(Rule(pattern="^forward$"),))
    reset = corridor(3, budget=1)
    async with serving(settings.model_copy(update={"bridge_action_policies": {"halls": policy}})) as stub:
        played = await play(stub, reset, [" Back ", "forward", "pid"])
    denied, dry, sent = played.observations[1:]
    assert (denied.valid_action, denied.reward, "One way only." in denied.state) == (False, 0.0, True)
    assert (dry.valid_action, "You are at 0 of 3." in dry.state) == (True, True)
    assert sent.state.startswith("You are at 0 of 3.")
    dispositions = rows("SELECT disposition FROM bridge.audit WHERE job_id = %s ORDER BY step", reset.job_id)
    assert dispositions == [("denied",), ("dry_run",), ("sent",)]
    assert rows("SELECT transitions_used FROM bridge.budgets WHERE job_id = %s", reset.job_id) == [(1,)]


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"job_id": ""}, "invalid_input", "job_id"),
        ({"adapter": ""}, "invalid_input", "adapter"),
        ({"adapter": "atlantis"}, "adapter_missing", "atlantis"),
        ({"max_steps": -1}, "invalid_input", "max_steps"),
        ({"transition_budget": -1}, "invalid_input", "budget"),
        ({"task": pb.Task(id="walk", metadata="{")}, "invalid_input", "Reset.task"),
        ({"task": pb.Task(id="walk")}, "invalid_input", "length"),
        ({"history": [pb.Turn(state="a", action="b")]}, "invalid_input", "history"),
    ],
)
async def test_a_reset_that_cannot_be_played_is_refused_by_name(
    settings: BridgeSettings, change: dict[str, Any], code: str, word: str
) -> None:
    async with serving(settings) as stub:
        reset = corridor()
        for name in change:
            reset.ClearField(name)  # type: ignore[arg-type]
        reset.MergeFrom(pb.Reset(**change))
        played = await play(stub, reset, [])
    assert played.failure is not None
    assert played.failure.code == code
    assert word in played.failure.message


async def test_without_the_database_nothing_reaches_the_environment(settings: BridgeSettings) -> None:
    async with serving(settings.model_copy(update={"database_url": "postgresql+psycopg://x@127.0.0.1:1/x"})) as stub:
        played = await play(stub, corridor(), [])
    assert played.observations == []
    assert played.failure is not None
    assert (played.failure.code, played.failure.retryable) == ("unavailable", True)


@asynccontextmanager
async def replay_service(settings: ServiceSettings, **changes: object) -> AsyncIterator[tuple[str, Stored]]:
    """The replay service: its address, and a reader of the episodes that it has of an environment."""
    server, port, store = await replay.start(ReplaySettings(**{**settings.model_dump(), **changes}), "127.0.0.1:0")
    address = f"127.0.0.1:{port}"
    channel = open_channel(address, settings)
    stub: Any = ReplayStub(channel)

    async def stored(environment_id: str) -> list[replay_pb.StoredEpisode]:
        return [one async for one in stub.ListEpisodes(replay_pb.ListEpisodesRequest(environment_id=environment_id))]

    try:
        yield address, stored
    finally:
        await channel.close(None)
        await server.stop(None)
        await store.close()


def spooled(settings: BridgeSettings) -> list[Path]:
    return sorted(settings.bridge_spool.glob("*.episode"))


async def test_a_recorded_episode_is_in_the_replay_store_when_its_stream_ends(settings: BridgeSettings) -> None:
    halls = uuid.uuid4().hex
    reset = corridor(2, environment_id=halls, record=True, policy_version="policy-7")
    async with replay_service(settings) as (address, stored):
        recording = settings.model_copy(update={"replay_address": address})
        async with serving(recording) as stub:
            await play(stub, reset, ["forward", "forward"])
            (episode,) = await stored(halls)
            await play(stub, corridor(2, environment_id=halls), ["forward", "forward"])
            assert len(await stored(halls)) == 1
    assert (episode.source, episode.split, episode.success) == (replay_pb.SOURCE_REAL, "train", True)
    assert (episode.job_id, episode.policy_version) == (reset.job_id, "policy-7")
    assert (episode.episode_id, episode.termination, episode.task_id) == (reset.episode_id, "success", "walk")
    assert [(step.action, step.state, step.next_state, step.reward) for step in episode.transitions] == [
        ("forward", "You are at 0 of 2.", "You are at 1 of 2.", 0.0),
        ("forward", "You are at 1 of 2.", "You are at 2 of 2.", 1.0),
    ]
    assert spooled(recording) == []


async def test_a_client_that_leaves_at_the_last_observation_loses_no_recording(settings: BridgeSettings) -> None:
    halls = uuid.uuid4().hex
    async with (
        replay_service(settings) as (address, stored),
        serving(settings.model_copy(update={"replay_address": address})) as stub,
    ):
        call = stub.Play()
        for move in (
            pb.PlayRequest(reset=corridor(1, environment_id=halls, record=True)),
            pb.PlayRequest(act=pb.Act(action="forward")),
        ):
            await call.write(move)
            await call.read()
        call.cancel()

        async def one_is_stored() -> bool:
            return [episode.termination for episode in await stored(halls)] == ["success"]

        await until(one_is_stored)


async def test_an_episode_recorded_without_a_replay_store_is_stored_after_a_restart(settings: BridgeSettings) -> None:
    halls = uuid.uuid4().hex
    away = settings.model_copy(update={"replay_address": "127.0.0.1:1", "bridge_record_wait_s": 0.1})
    async with serving(away) as stub:
        await play(stub, corridor(1, environment_id=halls, record=True), ["forward"])
    assert len(spooled(settings)) == 1
    async with (
        replay_service(settings) as (address, stored),
        serving(settings.model_copy(update={"replay_address": address})),
    ):
        await until(lambda: not spooled(settings))
        assert len(await stored(halls)) == 1


async def test_an_episode_that_the_store_rejects_is_set_aside_and_not_sent_again(settings: BridgeSettings) -> None:
    async with (
        replay_service(settings, replay_text_characters_max=5) as (address, _),
        serving(settings.model_copy(update={"replay_address": address})) as stub,
    ):
        await play(stub, corridor(1, record=True), ["forward"])
    assert spooled(settings) == []
    assert len(list((settings.bridge_spool / "refused").iterdir())) == 1


async def test_sessions_of_a_dead_bridge_are_closed(settings: BridgeSettings, rows: Rows) -> None:
    (found,) = rows(
        "INSERT INTO bridge.sessions (job_id, budget_id, environment_id, adapter, episode_id, task_id, policy_version,"
        " worker_pid, last_seen_at) VALUES ('j', 'b', 'e', 'a', 'p', 't', '', 1, now() - interval '1 hour') RETURNING id"
    )
    async with serving(settings):
        query = "SELECT termination FROM bridge.sessions WHERE id = %s"
        await until(lambda: rows(query, found[0]) == [("infrastructure",)])


@asynccontextmanager
async def bridge_process(settings: BridgeSettings) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any]]:
    """`python -m dreamgym.bridge.server` and a client of it."""
    address = f"127.0.0.1:{choose_port()}"
    environment = {
        **os.environ,
        "DREAMGYM_BRIDGE_ADDRESS": address,
        "DREAMGYM_DATABASE_URL": settings.database_url,
        "DREAMGYM_SERVICE_TOKEN": settings.service_token.get_secret_value(),
        "DREAMGYM_STATE_DIR": str(settings.state_dir),
        "DREAMGYM_BRIDGE_ADAPTERS": '{"corridor": "corridor:CorridorAdapter"}',
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "dreamgym.bridge.server", env=environment)
    channel = open_channel(address, settings)
    try:
        yield process, EnvironmentStub(channel)
    finally:
        await channel.close(None)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_sigterm_lets_the_running_episode_finish(settings: BridgeSettings) -> None:
    async with bridge_process(settings) as (process, stub):
        call = stub.Play(wait_for_ready=True)
        await call.write(pb.PlayRequest(reset=corridor(2)))
        await call.read()
        workers = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        for _ in range(2):
            await call.write(pb.PlayRequest(act=pb.Act(action="forward")))
            response = await call.read()
        assert response.observation.success
        assert await asyncio.wait_for(process.wait(), 15) == 0
    assert workers
    assert not any(worker.is_running() for worker in workers)


async def test_a_killed_bridge_leaves_no_adapter_process_behind(settings: BridgeSettings, rows: Rows) -> None:
    reset = corridor(2)
    async with bridge_process(settings) as (process, stub):
        call = stub.Play(wait_for_ready=True)
        await call.write(pb.PlayRequest(reset=reset))
        await call.read()
        await call.write(pb.PlayRequest(act=pb.Act(action="hang")))
        await until(lambda: rows("SELECT action FROM bridge.audit WHERE job_id = %s", reset.job_id) == [("hang",)])
        workers = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        assert workers
        await until(lambda: not any(worker.is_running() for worker in workers))


class Relay:
    """A TCP relay in front of the database, so that it can be taken away from one bridge only."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        listening: int = self._server.sockets[0].getsockname()[1]
        return listening

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_a_database_that_goes_away_stops_the_actions_and_comes_back_with_the_budget(
    settings: BridgeSettings,
) -> None:
    url = make_url(settings.database_url)
    relay = Relay(str(url.host), int(url.port or 5432))
    port = await relay.start()
    through = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    job = uuid.uuid4().hex
    async with serving(settings.model_copy(update={"database_url": through})) as stub:
        call = stub.Play()
        await call.write(pb.PlayRequest(reset=corridor(9, job=job, budget=2)))
        await call.read()
        await call.write(pb.PlayRequest(act=pb.Act(action="forward")))
        await call.read()
        await relay.stop()
        before = transitions_sent()
        await call.write(pb.PlayRequest(act=pb.Act(action="forward")))
        refused = await call.read()
        assert (refused.failure.code, refused.failure.retryable) == ("unavailable", True)
        assert transitions_sent() == before
        await relay.start(port)
        played = await play(stub, corridor(9, job=job, budget=2), ["forward", "forward"])
        await relay.stop()
    assert len(played.observations) == 1 + 1
    assert played.failure is not None
    assert played.failure.code == "budget_exhausted"


def transitions_sent() -> float:
    return REGISTRY.get_sample_value("dreamgym_bridge_transitions_total", {"adapter": "corridor"}) or 0.0


def test_the_migrations_make_what_the_models_describe_and_take_it_back(embedded_postgres: EmbeddedPostgres) -> None:
    embedded_postgres.ensure_database("bridge_migrations")
    url = embedded_postgres.url("bridge_migrations")
    configuration = Config(str(find_alembic_ini()), cmd_opts=Namespace(x=["schema=bridge"]))
    configuration.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    for _ in range(2):
        command.upgrade(configuration, "heads")
        command.check(configuration)
        command.downgrade(configuration, "bridge@base")
    engine = create_engine(url)
    with engine.connect() as connection:
        left = connection.scalar(text("SELECT count(*) FROM pg_class WHERE relnamespace = 'bridge'::regnamespace"))
    engine.dispose()
    assert left == 0


@pytest.mark.alfworld
async def test_the_expert_wins_a_real_alfworld_game_over_the_wire(settings: BridgeSettings, rows: Rows) -> None:
    pytest.importorskip("alfworld")
    from dreamgym.bridge.adapters.alfworld_engine import AlfworldAdapter
    from dreamgym.bridge.adapters.household_games import generate_game

    game = generate_game(3, task_type="pick_and_place_simple", rooms="small", split="train")
    metadata = {"game": game.to_json()}
    plan, adapter = [], AlfworldAdapter()
    state = adapter.reset({**metadata, "expert": True}, 3)
    while not state.done:
        plan.append(state.expert_action or "look")
        state = adapter.step(plan[-1])
    adapter.close()
    task = pb.Task(id=game.game_id, instruction=game.instruction, metadata=dump_json(metadata), split="train")
    reset = corridor(adapter="alfworld", environment_id=uuid.uuid4().hex, budget=100, seed=3, max_steps=50, record=True)
    reset.task.CopyFrom(task)
    async with (
        replay_service(settings) as (address, stored),
        serving(settings.model_copy(update={"replay_address": address})) as stub,
    ):
        info = await stub.Describe(pb.DescribeRequest(environment_id="household", adapter="alfworld"))
        played = await play(stub, reset, ["dance", *plan])
        (episode,) = await stored(reset.environment_id)
    assert "household" in info.description
    assert not played.observations[1].valid_action
    assert set(plan[:1]) <= set(played.observations[0].admissible_actions)
    assert (played.last.success, played.last.reward) == (True, 1.0)
    audit = rows("SELECT action FROM bridge.audit WHERE job_id = %s ORDER BY step", reset.job_id)
    assert [action for (action,) in audit] == ["dance", *plan]
    used = rows("SELECT transitions_used FROM bridge.budgets WHERE job_id = %s", reset.job_id)
    assert used == [(len(plan) + 1,)]
    assert [step.next_state for step in episode.transitions] == [seen.state for seen in played.observations[1:]]
