"""Real episodes on their way into the replay store."""

from __future__ import annotations

import uuid

import pytest

from dreamgym.bridge.settings import BridgeSettings
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.v1 import replay_pb2 as replay_pb
from support.bridge import (
    Rows,
    corridor,
    play,
    replay_service,
    serving,
    spooled,
    until,
)

pytestmark = pytest.mark.integration


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
