"""Budgets and the audit: what is sent is paid for and written down, once."""

from __future__ import annotations

import asyncio
import random
import uuid
from argparse import Namespace
from contextlib import suppress

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, make_url, text

from dreamgym.bridge.guard import ActionPolicy, Rule
from dreamgym.bridge.settings import BridgeSettings
from dreamgym.embedded.migrate import find_alembic_ini
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.v1 import environment_pb2 as pb
from support.bridge import (
    Relay,
    Rows,
    corridor,
    play,
    serving,
    transitions_sent,
)

pytestmark = pytest.mark.integration


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


async def test_without_the_database_nothing_reaches_the_environment(settings: BridgeSettings) -> None:
    async with serving(settings.model_copy(update={"database_url": "postgresql+psycopg://x@127.0.0.1:1/x"})) as stub:
        played = await play(stub, corridor(), [])
    assert played.observations == []
    assert played.failure is not None
    assert (played.failure.code, played.failure.retryable) == ("unavailable", True)


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
