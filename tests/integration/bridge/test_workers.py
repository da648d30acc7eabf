"""Adapter processes: faults, reuse, queues, streams that end."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import psutil
import pytest

from dreamgym.bridge.settings import BridgeSettings
from dreamgym.v1 import environment_pb2 as pb
from support.bridge import (
    Rows,
    corridor,
    play,
    serving,
)

pytestmark = pytest.mark.integration


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
