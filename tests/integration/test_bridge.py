"""The bridge over gRPC: real processes, real Postgres, a corridor for a world."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
import psycopg
import pytest

from dreamgym.bridge.guard import ActionPolicy, Rule
from dreamgym.bridge.server import SERVICE_NAME, BridgeService
from dreamgym.bridge.settings import BridgeSettings
from dreamgym.embedded.ports import choose_port
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.v1 import replay_pb2 as replay_pb
from dreamgym.v1.environment_pb2_grpc import EnvironmentStub, add_EnvironmentServicer_to_server
from dreamgym.v1.replay_pb2_grpc import ReplayServicer, add_ReplayServicer_to_server
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import dump_json
from dreamgym.wire.server import start_server
from dreamgym.wire.settings import ServiceSettings

pytestmark = pytest.mark.integration
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
HERE = Path(__file__).parent


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


_ReplayServicer: Any = ReplayServicer


class ReplayStore(_ReplayServicer):  # type: ignore[misc]
    """The appending side of the replay service, kept in memory."""

    def __init__(self, reject: str = "") -> None:
        self.episodes: list[replay_pb.StoredEpisode] = []
        self._reject = reject

    async def Append(self, request_iterator: AsyncIterator[replay_pb.AppendRequest], context: Any) -> Any:  # noqa: N802
        received = [request.episode async for request in request_iterator]
        if self._reject:
            rejected = [replay_pb.Rejection(episode_id=one.episode_id, reason=self._reject) for one in received]
            return replay_pb.AppendResponse(rejected=rejected)
        self.episodes += received
        return replay_pb.AppendResponse(episodes_stored=len(received))


@asynccontextmanager
async def replay_at(address: str, settings: ServiceSettings, store: ReplayStore) -> AsyncIterator[str]:
    server, port = await start_server(
        address, settings, [lambda server: add_ReplayServicer_to_server(store, server)], ["dreamgym.v1.Replay"]
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def spooled(settings: BridgeSettings) -> list[Path]:
    return sorted(settings.bridge_spool.glob("*.episode"))


async def test_a_recorded_episode_is_in_the_replay_store_when_its_stream_ends(settings: BridgeSettings) -> None:
    store, reset = ReplayStore(), corridor(2, record=True, policy_version="policy-7")
    async with replay_at("127.0.0.1:0", settings, store) as address:
        recording = settings.model_copy(update={"replay_address": address})
        async with serving(recording) as stub:
            await play(stub, reset, ["forward", "forward"])
            (stored,) = store.episodes
            await play(stub, corridor(2), ["forward", "forward"])
    assert len(store.episodes) == 1
    assert (stored.source, stored.split, stored.success) == (replay_pb.SOURCE_REAL, "train", True)
    assert (stored.environment_id, stored.job_id, stored.policy_version) == ("halls", reset.job_id, "policy-7")
    assert (stored.episode_id, stored.termination, stored.task_id) == (reset.episode_id, "success", "walk")
    assert [(step.action, step.state, step.next_state, step.reward) for step in stored.transitions] == [
        ("forward", "You are at 0 of 2.", "You are at 1 of 2.", 0.0),
        ("forward", "You are at 1 of 2.", "You are at 2 of 2.", 1.0),
    ]
    assert spooled(recording) == []


async def test_an_episode_recorded_without_a_replay_store_is_stored_after_a_restart(settings: BridgeSettings) -> None:
    away = settings.model_copy(update={"replay_address": "127.0.0.1:1", "bridge_record_wait_s": 0.1})
    async with serving(away) as stub:
        await play(stub, corridor(1, record=True), ["forward"])
    assert len(spooled(settings)) == 1
    store = ReplayStore()
    async with (
        replay_at("127.0.0.1:0", settings, store) as address,
        serving(settings.model_copy(update={"replay_address": address})),
    ):
        await until(lambda: len(store.episodes) == 1 and not spooled(settings))


async def test_an_episode_that_the_store_rejects_is_set_aside_and_not_sent_again(settings: BridgeSettings) -> None:
    async with (
        replay_at("127.0.0.1:0", settings, ReplayStore(reject="no")) as address,
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


async def test_sigterm_lets_the_running_episode_finish(settings: BridgeSettings, tmp_path: Path) -> None:
    address = f"127.0.0.1:{choose_port()}"
    environment = {
        **os.environ,
        "DREAMGYM_BRIDGE_ADDRESS": address,
        "DREAMGYM_DATABASE_URL": settings.database_url,
        "DREAMGYM_SERVICE_TOKEN": settings.service_token.get_secret_value(),
        "DREAMGYM_STATE_DIR": str(tmp_path),
        "DREAMGYM_BRIDGE_ADAPTERS": '{"corridor": "corridor:CorridorAdapter"}',
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "dreamgym.bridge.server", env=environment)
    channel = open_channel(address, settings)
    try:
        stub: Any = EnvironmentStub(channel)
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
    finally:
        await channel.close(None)
        if process.returncode is None:
            process.kill()
            await process.wait()


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
    reset = corridor(adapter="alfworld", environment_id="household", budget=100, seed=3, max_steps=50, record=True)
    reset.task.CopyFrom(task)
    store = ReplayStore()
    async with (
        replay_at("127.0.0.1:0", settings, store) as address,
        serving(settings.model_copy(update={"replay_address": address})) as stub,
    ):
        info = await stub.Describe(pb.DescribeRequest(environment_id="household", adapter="alfworld"))
        played = await play(stub, reset, ["dance", *plan])
    assert "household" in info.description
    assert not played.observations[1].valid_action
    assert set(plan[:1]) <= set(played.observations[0].admissible_actions)
    assert (played.last.success, played.last.reward) == (True, 1.0)
    audit = rows("SELECT action FROM bridge.audit WHERE job_id = %s ORDER BY step", reset.job_id)
    assert [action for (action,) in audit] == ["dance", *plan]
    used = rows("SELECT transitions_used FROM bridge.budgets WHERE job_id = %s", reset.job_id)
    assert used == [(len(plan) + 1,)]
    (stored,) = store.episodes
    assert [step.next_state for step in stored.transitions] == [seen.state for seen in played.observations[1:]]
