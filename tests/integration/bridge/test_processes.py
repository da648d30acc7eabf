"""The bridge as a process, and the real engine behind it."""

from __future__ import annotations

import asyncio
import uuid

import psutil
import pytest

from dreamgym.bridge.settings import BridgeSettings
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.wire.convert import dump_json
from support.bridge import (
    Rows,
    bridge_process,
    corridor,
    play,
    replay_service,
    serving,
    until,
)

pytestmark = pytest.mark.integration


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
