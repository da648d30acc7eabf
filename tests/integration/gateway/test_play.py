"""Episodes played over REST."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dreamgym.core.errors import DreamGymError
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.v1.environment_pb2_grpc import EnvironmentServicer, add_EnvironmentServicer_to_server
from dreamgym.wire.errors import failure_message
from dreamgym.wire.server import start_server
from support.gateway import Platform, eventually, platform_with

pytestmark = pytest.mark.integration


class CountingWorld(EnvironmentServicer):
    """An environment that counts actions and fails when told to; a customer could serve the like."""

    def __init__(self) -> None:
        self.open = 0
        self.resets: list[env_pb.Reset] = []

    async def Describe(self, request: env_pb.DescribeRequest, context: Any) -> env_pb.EnvironmentInfo:  # noqa: N802
        return env_pb.EnvironmentInfo(environment_id=request.environment_id)

    async def Play(self, request_iterator: Any, context: Any) -> AsyncIterator[env_pb.PlayResponse]:  # noqa: N802
        self.open += 1
        count = 0
        try:
            async for request in request_iterator:
                if request.HasField("reset"):
                    self.resets.append(request.reset)
                    yield env_pb.PlayResponse(observation=env_pb.Observation(state="start", valid_action=True))
                    continue
                if request.act.action == "break":
                    error = DreamGymError("The world broke.", remedy="Start again.")
                    yield env_pb.PlayResponse(failure=failure_message(error))
                    return
                count += 1
                done = count == 2
                yield env_pb.PlayResponse(
                    observation=env_pb.Observation(
                        state=f"{count}: {request.act.action}",
                        done=done,
                        success=done,
                        termination=env_pb.TERMINATION_REASON_SUCCESS
                        if done
                        else env_pb.TERMINATION_REASON_UNSPECIFIED,
                        valid_action=True,
                    )
                )
        finally:
            self.open -= 1


@pytest.fixture
async def world(settings: GatewaySettings) -> AsyncIterator[CountingWorld]:
    world = CountingWorld()
    server, _ = await start_server(
        settings.bridge_address, settings, [lambda server: add_EnvironmentServicer_to_server(world, server)], []
    )
    yield world
    await server.stop(None)


async def test_an_episode_is_played_over_rest(platform: Platform, world: CountingWorld) -> None:
    await platform.environment()
    await platform.rest.post("/v1/environments/household/tasks", json=[{"id": "mug", "instruction": "find the mug"}])
    body = {"task_id": "mug", "where": "real", "transition_budget": 5, "seed": 3}
    opened = await platform.rest.post("/v1/environments/household/play", json=body)
    assert opened.status_code == 201, opened.text
    session = opened.json()["session"]
    assert (opened.json()["state"], opened.json()["instruction"]) == ("start", "find the mug")
    assert (world.resets[0].transition_budget, world.resets[0].seed, world.resets[0].adapter) == (5, 3, "alfworld")
    first = (await platform.rest.post(f"/v1/play/{session}/act", json={"action": "look"})).json()
    assert (first["state"], first["done"], first["step"]) == ("1: look", False, 1)
    second = (await platform.rest.post(f"/v1/play/{session}/act", json={"action": "take"})).json()
    assert (second["done"], second["success"], second["termination"]) == (True, True, "success")
    after = await platform.rest.post(f"/v1/play/{session}/act", json={"action": "more"})
    assert after.status_code == 409
    assert (await platform.rest.delete(f"/v1/play/{session}")).status_code == 204

    async def freed() -> bool:
        return world.open == 0

    await eventually(freed)


async def test_a_failure_of_the_world_is_a_problem_and_ends_the_session(
    platform: Platform, world: CountingWorld
) -> None:
    await platform.environment()
    body = {"instruction": "x", "where": "real", "transition_budget": 5}
    session = (await platform.rest.post("/v1/environments/household/play", json=body)).json()["session"]
    broken = await platform.rest.post(f"/v1/play/{session}/act", json={"action": "break"})
    assert (broken.status_code, broken.json()["detail"], broken.json()["remedy"]) == (
        500,
        "The world broke.",
        "Start again.",
    )
    assert (await platform.rest.post(f"/v1/play/{session}/act", json={"action": "x"})).status_code == 404


async def test_idle_sessions_end_and_too_many_are_refused(settings: GatewaySettings, world: CountingWorld) -> None:
    few = settings.model_copy(update={"max_play_sessions": 1, "play_idle_s": 0.4})
    async with platform_with(few) as platform:
        await platform.environment()
        body = {"instruction": "x", "where": "real", "transition_budget": 5}
        opened = await platform.rest.post("/v1/environments/household/play", json=body)
        assert opened.status_code == 201
        second = await platform.rest.post("/v1/environments/household/play", json=body)
        assert (second.status_code, second.json()["code"]) == (429, "capacity")

        async def freed() -> bool:
            return world.open == 0

        await eventually(freed)


async def test_a_dead_world_is_named(platform: Platform) -> None:
    await platform.environment()
    body = {"instruction": "x", "where": "real", "transition_budget": 5}
    answer = await platform.rest.post("/v1/environments/household/play", json=body)
    assert answer.status_code == 503
    assert "bridge" in answer.json()["detail"]
    dream = await platform.rest.post("/v1/environments/household/play", json={"instruction": "x"})
    assert (dream.status_code, dream.json()["code"]) == (404, "model_missing")
