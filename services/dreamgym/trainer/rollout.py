"""Plays episodes: the policy's engine on one side, `Environment.Play` (dream or real) on the other.

Episodes are asyncio tasks; the engine batches whatever waits. The ids that were read and sampled, with their
log-probabilities, are the training record: text is never tokenised again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from dreamgym.core import policy_prompt
from dreamgym.core.action_choices import ActionChooser, token_choices
from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.errors import CapacityError, ContextOverflowError, DeadlineError, DreamGymError
from dreamgym.core.jobs import Rollouts
from dreamgym.inference.engine import Engine, Generation, GenerationRequest
from dreamgym.trainer.action_space import ActionSpace, Allowed, allowed_along, forced
from dreamgym.trainer.play_stream import PlayStream
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.wire.convert import task_to_proto, termination_from_proto, transition_from_observation

log = logging.getLogger(__name__)
T = TypeVar("T")
FULL_WAIT_S = 1.0
"""Pause before an environment that was full is asked again."""


@dataclass
class PlayedEpisode:
    """One finished attempt. `ids` is the whole transcript, `sampled` marks the policy's own tokens (with `logprobs`)."""

    id: str
    task: Task
    termination: TerminationReason = TerminationReason.INFRASTRUCTURE
    success: bool = False
    reward: float = 0.0
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    allowed: list[Allowed] = field(default_factory=list)
    """For each sampled token, in order, those it was chosen from."""
    transitions: list[Transition] = field(default_factory=list)
    policy_version: str = ""
    model_version: str = ""
    failure: DreamGymError | None = None
    seconds: float = 0.0
    policy_tokens: int = 0
    environment_tokens: int = 0

    @property
    def counts(self) -> bool:
        """True if the episode says something about the policy."""
        return self.termination.is_outcome

    @property
    def learnt(self) -> list[bool]:
        """Parallel to `ids`: the sampled tokens that were chosen, not forced."""
        chosen = iter(self.allowed)
        return [mark and not forced(next(chosen, ())) for mark in self.sampled]

    @property
    def turns_learnt(self) -> list[int]:
        """For each learnt token the number of its turn, from 0."""
        turn, before, turns = -1, False, []
        for sampled, learnt in zip(self.sampled, self.learnt, strict=True):
            turn += sampled and not before
            before = sampled
            if learnt:
                turns.append(turn)
        return turns

    @property
    def allowed_learnt(self) -> list[Allowed]:
        """`allowed` without the forced tokens."""
        return [tokens for tokens in self.allowed if not forced(tokens)]

    @property
    def invalid_actions(self) -> int:
        return sum(not t.valid_action for t in self.transitions)

    def as_episode(self, source: Source) -> Episode:
        return Episode(self.id, self.task, source, tuple(self.transitions), self.termination)


def figures_of(played: Sequence[PlayedEpisode]) -> dict[str, float]:
    """How an iteration's episodes went, over those that count; the others are `failed_episodes`."""
    counted = [episode for episode in played if episode.counts]
    steps = sum(len(episode.transitions) for episode in counted)
    # An episode that the budget cut off did not fail: it is left out, and counted apart.
    cut_off = sum(episode.termination is TerminationReason.BUDGET for episode in played)
    return {
        "success": sum(e.success for e in counted) / len(counted) if counted else 0.0,
        "invalid_rate": sum(e.invalid_actions for e in counted) / steps if steps else 0.0,
        "mean_steps": steps / len(counted) if counted else 0.0,
        "failed_episodes": len(played) - len(counted) - cut_off,
        "cut_off_by_budget": cut_off,
    }


@dataclass(frozen=True)
class World:
    """Where episodes are played: an `Environment` service and what its resets need."""

    channel: grpc.aio.Channel
    environment_id: str
    source: Source
    job_id: str
    experience_model: str = ""
    replay_cursor: int = 0
    retrieved_per_step: int = -1
    self_judged: bool = False
    dream_share_cap: float = 0.0
    exclude_own_task: bool = False
    """Retrieval leaves out what is stored of the episode's own task: it would tell the answer that is measured."""
    adapter: str = ""
    transition_budget: int = 0
    budget_id: str = ""
    record: bool = False
    space: ActionSpace | None = None
    """What actions may consist of; None: any text."""

    def reset(self, task: Task, episode_id: str, seed: int, max_steps: int, policy_version: str) -> pb.Reset:
        return pb.Reset(
            environment_id=self.environment_id,
            task=task_to_proto(task),
            episode_id=episode_id,
            seed=seed,
            max_steps=max_steps,
            job_id=self.job_id,
            experience_model=self.experience_model,
            replay_cursor=self.replay_cursor,
            retrieved_per_step=self.retrieved_per_step,
            self_judged=self.self_judged,
            dream_share_cap=self.dream_share_cap,
            exclude_own_task=self.exclude_own_task,
            adapter=self.adapter,
            transition_budget=self.transition_budget,
            budget_id=self.budget_id,
            record=self.record,
            policy_version=policy_version,
        )


@dataclass(frozen=True)
class Attempt:
    """One episode to play. Attempts of one group share `world_seed` and differ in `sample_seed`."""

    task: Task
    episode_id: str
    world_seed: int
    sample_seed: int


async def play_all(
    attempts: Sequence[Attempt],
    engine: Engine,
    world: World,
    rollouts: Rollouts,
    check: Callable[[], None],
    on_finished: Callable[[PlayedEpisode], None] | None = None,
) -> list[PlayedEpisode]:
    """Play attempts, at most `rollouts.concurrency` at a time; answers them in the given order.

    A failed episode is data (its `failure` is set). `check` may raise to stop everything, which closes every stream.
    """
    gate = asyncio.Semaphore(rollouts.concurrency)

    async def play(attempt: Attempt) -> PlayedEpisode:
        async with gate:
            episode = await _played(attempt, engine, world, rollouts, check)
        if on_finished is not None:
            on_finished(episode)
        return episode

    tasks = [asyncio.create_task(play(attempt)) for attempt in attempts]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _played(
    attempt: Attempt, engine: Engine, world: World, rollouts: Rollouts, check: Callable[[], None]
) -> PlayedEpisode:
    """One episode. An environment that is full is asked again: what never began says nothing and must not be lost."""
    give_up = time.monotonic() + rollouts.start_deadline_s
    while True:
        check()
        player = _Player(attempt, engine, world, rollouts, check)
        episode = await player.play()
        if not player.found_no_place:
            break
        if time.monotonic() > give_up:
            log.warning("episode left out", extra={"episode": episode.id, "reason": str(episode.failure)})
            break
        log.info("episode waits for a place", extra={"episode": episode.id, "reason": str(episode.failure)})
        await asyncio.sleep(FULL_WAIT_S)
    return episode


class _Player:
    def __init__(
        self, attempt: Attempt, engine: Engine, world: World, rollouts: Rollouts, check: Callable[[], None]
    ) -> None:
        self.attempt = attempt
        self.engine = engine
        self.world = world
        self.rollouts = rollouts
        self.check = check
        self.episode = PlayedEpisode(id=attempt.episode_id, task=attempt.task, policy_version=engine.model_version)
        self.chooser: ActionChooser | None = None
        self.said: dict[str, Sequence[int]] = {}
        """Token ids of the actions that this episode offered so far."""

    @property
    def found_no_place(self) -> bool:
        """True if the environment was full and the episode never began."""
        return isinstance(self.episode.failure, CapacityError) and not self.episode.ids

    async def play(self) -> PlayedEpisode:
        started = time.monotonic()
        world, attempt = self.world, self.attempt
        stream = PlayStream(
            world.channel, f"{world.source} environment", attempt.episode_id, self.rollouts.turn_deadline_s
        )
        try:
            await self._episode(stream)
        except DreamGymError as error:
            if error is stream.fault:
                self._fail(error, stream.fault_reason)
            elif isinstance(error, ContextOverflowError):  # of the policy's own window
                self._fail(error, TerminationReason.CONTEXT_OVERFLOW)
            else:
                self._fail(error)
        finally:
            await stream.close()
            await self.engine.release(attempt.episode_id)
        self.episode.seconds = time.monotonic() - started
        return self.episode

    async def _episode(self, stream: PlayStream) -> None:
        episode, attempt, rollouts = self.episode, self.attempt, self.rollouts
        observation = await stream.reset(
            self.world.reset(
                attempt.task, attempt.episode_id, attempt.world_seed, rollouts.max_steps, episode.policy_version
            )
        )
        state = observation.state
        episode.model_version = observation.model_version
        if self.world.space is not None and self.world.space.rules is not None:
            self.chooser = ActionChooser(self.world.space.rules, state)
        self._read(policy_prompt.opening(attempt.task.instruction, state))
        invalid_in_a_row = 0
        for step in range(rollouts.max_steps):
            self.check()
            action = await self._act(step)
            observation = await stream.act(action)
            self._note(state, action, observation)
            if self.chooser is not None:
                self.chooser.follow(action, observation.state)
            state = observation.state
            invalid_in_a_row = 0 if observation.valid_action else invalid_in_a_row + 1
            if observation.done:
                reason = termination_from_proto(observation.termination)
                success = observation.success
                episode.termination = reason or (TerminationReason.SUCCESS if success else TerminationReason.FAILURE)
                episode.success = success
                break
            if invalid_in_a_row >= rollouts.max_consecutive_invalid:
                episode.termination = TerminationReason.INVALID_ACTIONS
                break
            self._read(policy_prompt.after_action(state))
        else:
            episode.termination = TerminationReason.STEP_LIMIT
        # A recorded stream ends when the episode is in the replay store; what comes next may read it there.
        await stream.finish(until_stored=self.world.record)

    async def _act(self, step: int) -> str:
        episode = self.episode
        seed = seed_of(self.attempt.sample_seed, step)
        choices = token_choices(self.chooser.choices(), self._said) if self.chooser is not None else ()
        choices = tuple(choice for choice in choices if len(choice) <= self.rollouts.max_action_tokens)
        allowed: list[int] | None = None
        if self.world.space is not None and not choices:
            allowed = sorted(self.world.space.tokens.union(episode.ids))
        request = GenerationRequest(
            session=self.attempt.episode_id,
            prompt_ids=tuple(episode.ids),  # the list grows while an engine may still read the prompt
            max_new_tokens=self.rollouts.max_action_tokens,
            stop=(policy_prompt.END_OF_ACTION,),
            temperature=self.rollouts.temperature,
            seed=seed,
            allowed=allowed,
            choices=choices or None,
        )
        generation = await self._generated(request)
        episode.policy_version = generation.model_version
        episode.ids += generation.token_ids
        episode.sampled += [True] * len(generation.token_ids)
        episode.logprobs += generation.logprobs
        episode.allowed += allowed_along(choices, generation.token_ids)
        episode.policy_tokens += len(generation.token_ids)
        if generation.finish == "length":  # the end of turn was not sampled: the environment writes it
            self._read(policy_prompt.END_OF_ACTION)
        return policy_prompt.one_line(self.engine.decode(generation.token_ids))

    async def _generated(self, request: GenerationRequest) -> Generation:
        try:
            return await asyncio.wait_for(self.engine.generate(request), self.rollouts.turn_deadline_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"The policy engine took longer than {self.rollouts.turn_deadline_s} s for one turn of {request.session}.",
                remedy="Raise rollouts.turn_deadline_s or lower rollouts.concurrency.",
            ) from error

    def _said(self, action: str) -> Sequence[int]:
        if action not in self.said:
            self.said[action] = self.engine.encode(policy_prompt.said(action))
        return self.said[action]

    def _read(self, text: str) -> None:
        ids = self.engine.encode(text)
        self.episode.ids += ids
        self.episode.sampled += [False] * len(ids)
        self.episode.logprobs += [0.0] * len(ids)

    def _note(self, state: str, action: str, observation: pb.Observation) -> None:
        self.episode.environment_tokens += observation.prompt_tokens + observation.completion_tokens
        self.episode.reward += observation.reward
        self.episode.transitions.append(transition_from_observation(state, action, observation))

    def _fail(self, error: DreamGymError, reason: TerminationReason | None = None) -> None:
        if self.episode.failure is None:
            self.episode.failure = error
            self.episode.termination = reason or TerminationReason.INFRASTRUCTURE
            if self.found_no_place:  # it is asked again, and told of if that does not help
                return
            # A spent budget is what a budget is for; the rest is worth an operator's look.
            level = logging.INFO if self.episode.termination is TerminationReason.BUDGET else logging.WARNING
            log.log(level, "episode left out", extra={"episode": self.episode.id, "reason": str(error)})


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed from parts, the same in every process."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
