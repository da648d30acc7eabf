"""Episodes against a real server on loopback: a corridor whose end is the goal. The policy is a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import SecretStr

from dreamgym.core.action_choices import ActionRules
from dreamgym.core.consistency import Consistency
from dreamgym.core.episodes import Source, Task, TerminationReason
from dreamgym.core.errors import (
    AdapterError,
    BudgetExhaustedError,
    CapacityError,
    ContextOverflowError,
    DeadlineError,
    DreamGymError,
    ModelOutputError,
    UnavailableError,
)
from dreamgym.core.jobs import Rollouts
from dreamgym.inference.scripted import ScriptedEngine
from dreamgym.trainer import rollout
from dreamgym.trainer.action_space import ActionSpace
from dreamgym.trainer.rollout import Attempt, PlayedEpisode, World, play_all, seed_of
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.v1 import environment_pb2_grpc
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import termination_to_proto
from dreamgym.wire.errors import failure_message
from dreamgym.wire.server import start_server
from dreamgym.wire.settings import ServiceSettings

Script = Callable[[str, int], str]


class Corridor(environment_pb2_grpc.EnvironmentServicer):
    """Three places long. Some words make it misbehave; see `_answer`."""

    def __init__(self) -> None:
        self.first_state = "You are at 0."
        self.resets: list[pb.Reset] = []
        self.actions: list[str] = []
        self.open = 0
        self.full = 0
        """How many resets find no place."""
        self.closed = asyncio.Event()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.EnvironmentInfo:  # noqa: N802
        return pb.EnvironmentInfo(environment_id="env")

    async def Play(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.PlayResponse]:  # noqa: N802
        self.open += 1
        place = 0
        try:
            async for request in request_iterator:
                if request.HasField("reset"):
                    self.resets.append(request.reset)
                    if self.full > 0:
                        self.full -= 1
                        yield pb.PlayResponse(failure=failure_message(CapacityError("Every place is taken.")))
                        return
                    yield observed(self.first_state)
                    continue
                action = request.act.action
                self.actions.append(action)
                place += action == "forward"
                if action == "leave quietly":
                    return
                if action == "hang":
                    await asyncio.Event().wait()
                yield self._answer(action, place)
                if action == "leave after":
                    return
        finally:
            self.open -= 1
            if not self.open:
                self.closed.set()

    def _answer(self, action: str, place: int) -> pb.PlayResponse:
        failures: dict[str, DreamGymError] = {
            "break": AdapterError("The lamp fell.", remedy="Hang it up."),
            "spend": BudgetExhaustedError("Spent."),
            "babble": ModelOutputError("No transition."),
            "overflow": ContextOverflowError("The dream is too long."),
        }
        if action in failures:
            return pb.PlayResponse(failure=failure_message(failures[action]))
        if action == "raise":
            raise UnavailableError("The store is away.", remedy="Start it.")
        if action == "crash":
            raise RuntimeError("a fault nobody foresaw")
        if action == "end":
            return observed("Over.", done=True, termination=termination_to_proto(TerminationReason.FAILURE))
        if action == "cancel":
            return observed("Over.", done=True, termination=termination_to_proto(TerminationReason.CANCELLED))
        won = place == 3
        return observed(
            f"You are at {place}.",
            valid=action in ("forward", "wait", "leave after"),
            done=won,
            success=won,
            reward=float(won),
        )


def observed(state: str, *, valid: bool = True, **fields: Any) -> pb.PlayResponse:
    observation = pb.Observation(
        state=state,
        valid_action=valid,
        confidence=0.5,
        prompt_tokens=7,
        completion_tokens=3,
        model_version="m1",
        **fields,
    )
    return pb.PlayResponse(observation=observation)


@dataclass
class Stage:
    """The corridor's server and a world that leads to it."""

    corridor: Corridor
    world: World

    async def play(self, script: Script | ScriptedEngine, *, episodes: int = 1, **rollouts: Any) -> list[PlayedEpisode]:
        engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(script)
        return await play_all(
            attempts(episodes), engine, self.world, Rollouts.model_validate(rollouts), check=lambda: None
        )


def attempts(count: int) -> list[Attempt]:
    task = Task("t", "reach the end", metadata={"length": 3})
    return [Attempt(task, f"e{i}", world_seed=5, sample_seed=i) for i in range(count)]


def always(action: str) -> Script:
    return lambda prompt, seed: f" {action}\n"


def first(action: str) -> Script:
    """Says it once the corridor was walked one place, so that the failure falls amidst an episode."""
    return lambda prompt, seed: f" {action}\n" if "at 1." in prompt else " forward\n"


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    settings = ServiceSettings(service_token=SecretStr("t"))
    corridor = Corridor()
    add: Any = environment_pb2_grpc.add_EnvironmentServicer_to_server
    server, port = await start_server("127.0.0.1:0", settings, [lambda s: add(corridor, s)], [])
    channel = open_channel(f"127.0.0.1:{port}", settings)
    yield Stage(corridor, World(channel, "env", Source.DREAM, "job"))
    await channel.close(None)
    await server.stop(None)


async def test_an_episode_waits_for_a_place_in_a_full_environment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "FULL_WAIT_S", 0.01)
    stage.corridor.full = 3
    played = await stage.play(always("forward"), episodes=2)
    assert [episode.success for episode in played] == [True, True]
    assert len(stage.corridor.resets) == 2 + 3
    stage.corridor.full = 1
    (left_out,) = await stage.play(always("forward"), start_deadline_s=0)
    assert isinstance(left_out.failure, CapacityError)
    assert not left_out.counts


async def test_a_won_episode_carries_its_transitions_and_what_it_cost(stage: Stage) -> None:
    (episode,) = await stage.play(always("forward"))
    assert episode.termination is TerminationReason.SUCCESS
    assert (episode.success, episode.reward, episode.counts, episode.failure) == (True, 1.0, True, None)
    steps = [(t.state, t.action, t.next_state) for t in episode.transitions]
    assert steps == [(f"You are at {i}.", "forward", f"You are at {i + 1}.") for i in range(3)]
    assert (episode.environment_tokens, episode.policy_tokens) == (30, 3 * len(" forward\n"))
    assert (episode.policy_version, episode.model_version) == ("scripted", "m1")
    assert episode.as_episode(Source.DREAM).success


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("wait", TerminationReason.STEP_LIMIT),
        ("end", TerminationReason.FAILURE),
        ("fly", TerminationReason.INVALID_ACTIONS),
    ],
)
async def test_a_lost_episode_says_why_and_counts(stage: Stage, action: str, reason: TerminationReason) -> None:
    (episode,) = await stage.play(first(action), max_steps=6, max_consecutive_invalid=3)
    assert episode.termination is reason
    assert (episode.success, episode.reward, episode.counts, episode.failure) == (False, 0.0, True, None)


async def test_an_episode_cancelled_by_its_environment_does_not_count(stage: Stage) -> None:
    (episode,) = await stage.play(first("cancel"))
    assert (episode.termination, episode.counts) == (TerminationReason.CANCELLED, False)


async def test_only_refusals_in_a_row_end_an_episode(stage: Stage) -> None:
    def alternating(prompt: str, seed: int) -> str:
        return " fly\n" if prompt.count("\n>") % 2 else " wait\n"

    (episode,) = await stage.play(alternating, max_steps=9, max_consecutive_invalid=2)
    assert (episode.termination, episode.invalid_actions) == (TerminationReason.STEP_LIMIT, 5)
    (episode,) = await stage.play(always("fly"), max_steps=9, max_consecutive_invalid=2)
    assert (episode.termination, len(episode.transitions)) == (TerminationReason.INVALID_ACTIONS, 2)


@pytest.mark.parametrize(
    ("action", "cls"),
    [
        ("break", AdapterError),
        ("babble", ModelOutputError),
        ("overflow", ContextOverflowError),
        ("raise", UnavailableError),
        ("crash", DreamGymError),
        ("leave quietly", DreamGymError),
        ("leave after", DreamGymError),
    ],
)
async def test_a_fault_of_the_environment_is_infrastructure_and_never_a_reward_of_nothing(
    stage: Stage, action: str, cls: type[DreamGymError]
) -> None:
    (failed,) = await stage.play(first(action))
    (won,) = await stage.play(always("forward"))
    assert failed.termination is TerminationReason.INFRASTRUCTURE
    assert not failed.counts
    assert type(failed.failure) is cls
    assert won.success


async def test_a_stream_that_ended_while_the_policy_thought_fails_its_episode_and_no_other(stage: Stage) -> None:
    class Slow(ScriptedEngine):
        async def generate(self, request: Any) -> Any:
            if "leave after" in self.decode(request.prompt_ids):
                await stage.corridor.closed.wait()
                # An answer on the same connection arrives after the status of the stream that ended.
                stub: Any = environment_pb2_grpc.EnvironmentStub(stage.world.channel)
                await stub.Describe(pb.DescribeRequest())
            return await super().generate(request)

    (episode,) = await stage.play(Slow(first("leave after")))
    assert (episode.termination, type(episode.failure)) == (TerminationReason.INFRASTRUCTURE, DreamGymError)
    assert "ended early" in str(episode.failure)


async def test_a_spent_budget_is_its_own_reason_and_does_not_count(stage: Stage) -> None:
    (episode,) = await stage.play(first("spend"))
    assert (episode.termination, episode.counts) == (TerminationReason.BUDGET, False)
    assert type(episode.failure) is BudgetExhaustedError
    assert len(episode.transitions) == 1


async def test_a_silent_environment_ends_at_the_turns_deadline(stage: Stage) -> None:
    (episode,) = await stage.play(first("hang"), turn_deadline_s=0.2)
    assert (episode.termination, episode.counts) == (TerminationReason.INFRASTRUCTURE, False)
    assert type(episode.failure) is DeadlineError
    assert "environment" in str(episode.failure)
    await asyncio.wait_for(stage.corridor.closed.wait(), 5)


async def test_a_silent_policy_ends_at_the_turns_deadline_too(stage: Stage) -> None:
    class Silent(ScriptedEngine):
        async def generate(self, request: Any) -> Any:
            await asyncio.Event().wait()

    (episode,) = await stage.play(Silent(always("wait")), turn_deadline_s=0.1)
    assert episode.termination is TerminationReason.INFRASTRUCTURE
    assert "policy engine" in str(episode.failure)


async def test_a_transcript_beyond_the_policys_window_is_an_outcome(stage: Stage) -> None:
    (episode,) = await stage.play(ScriptedEngine(always("wait"), context_window=100), max_steps=50)
    assert (episode.termination, episode.counts) == (TerminationReason.CONTEXT_OVERFLOW, True)
    assert not episode.success


async def test_an_environment_that_is_away_fails_the_episode_by_name(unused_tcp_port: int) -> None:
    channel = open_channel(f"127.0.0.1:{unused_tcp_port}", ServiceSettings(service_token=SecretStr("t")))
    world = World(channel, "env", Source.REAL, "job")
    (episode,) = await play_all(attempts(1), ScriptedEngine(always("wait")), world, Rollouts(), lambda: None)
    assert (episode.termination, type(episode.failure)) == (TerminationReason.INFRASTRUCTURE, UnavailableError)
    assert "real environment" in str(episode.failure)
    await channel.close(None)


async def test_each_prompt_extends_the_previous_one_and_the_transcript_is_what_was_read_and_said(stage: Stage) -> None:
    engine = ScriptedEngine(always("forward"))
    (episode,) = await stage.play(engine)
    text = "Task: reach the end\nYou are at 0.\n>"
    for request, place in zip(engine.requests, range(1, 4), strict=True):
        assert engine.decode(request.prompt_ids) == text
        text += f" forward\nYou are at {place}.\n>"
    said = [i for i, mark in zip(episode.ids, episode.sampled, strict=True) if mark]
    assert engine.decode(said) == " forward\n" * 3
    assert engine.decode(episode.ids) == text.removesuffix("You are at 3.\n>")
    assert len(episode.logprobs) == len(episode.ids)
    assert len({request.seed for request in engine.requests}) == 3


async def test_a_turn_cut_short_ends_with_a_newline_that_the_policy_did_not_say(stage: Stage) -> None:
    engine = ScriptedEngine(always("forward and on and on"))
    (episode,) = await stage.play(engine, max_action_tokens=8, max_steps=1)
    assert stage.corridor.actions == ["forward"]
    after = len("Task: reach the end\nYou are at 0.\n>")
    assert engine.decode(episode.ids[after : after + 9]) == " forward\n"
    assert episode.sampled[after : after + 9] == [True] * 8 + [False]


async def test_a_policy_with_rules_is_offered_what_the_texts_leave_open(stage: Stage) -> None:
    rules = ActionRules(
        action_format="forward | open (place)",
        consistency=Consistency(rules=("reach",)),
        refusals=("Nothing happens.",),
    )
    words = frozenset(b"forward")
    engine = ScriptedEngine(always("forward"))
    stage.corridor.first_state = "You are at 0, before a door 1."
    stage.world = replace(stage.world, space=ActionSpace(words, 256, rules))
    (episode,) = await stage.play(engine)
    assert [engine.decode(c) for c in engine.requests[0].choices or ()] == [" forward\n"]
    assert engine.requests[0].allowed is None
    assert len(episode.allowed) == sum(episode.sampled)
    assert episode.learnt == [False] * len(episode.ids), "nothing was chosen where one choice is left"
    stage.corridor.first_state = "You are at 0."
    engine.requests.clear()
    (episode,) = await stage.play(engine)
    assert engine.requests[0].choices is None
    assert set(engine.requests[0].allowed or ()) == words | set(engine.requests[0].prompt_ids)
    assert episode.learnt == episode.sampled


async def test_a_group_shares_its_world_and_differs_in_what_it_samples(stage: Stage) -> None:
    engine = ScriptedEngine(always("forward"))
    played = await stage.play(engine, episodes=4)
    assert [episode.id for episode in played] == ["e0", "e1", "e2", "e3"]
    assert {reset.seed for reset in stage.corridor.resets} == {5}
    assert {reset.policy_version for reset in stage.corridor.resets} == {"scripted"}
    assert {reset.task.metadata for reset in stage.corridor.resets} == {'{"length":3}'}
    assert len({request.seed for request in engine.requests}) == 12


async def test_no_more_episodes_are_open_than_allowed(stage: Stage) -> None:
    most = 0

    def watching(prompt: str, seed: int) -> str:
        nonlocal most
        most = max(most, stage.corridor.open)
        return " forward\n"

    assert all(e.success for e in await stage.play(watching, episodes=7, concurrency=2))
    assert most <= 3  # a stream that just ended may not be gone yet


async def test_a_check_that_raises_closes_every_stream(stage: Stage) -> None:
    class Stopped(Exception):  # noqa: N818
        pass

    def check() -> None:
        if len(stage.corridor.actions) >= 8:
            raise Stopped

    with pytest.raises(Stopped):
        await asyncio.wait_for(
            play_all(attempts(4), ScriptedEngine(always("wait")), stage.world, Rollouts(max_steps=200), check), 10
        )
    await asyncio.wait_for(stage.corridor.closed.wait(), 5)
    assert stage.corridor.open == 0


def test_seeds_are_the_same_everywhere_and_fit_a_signed_number() -> None:
    assert seed_of(1, "a") == seed_of(1, "a") != seed_of("1a")
    assert 0 <= seed_of("x") < 2**63
