"""Reads the protocol's requests and writes its answers; the modules behind know nothing of gRPC."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from dreamgym.core.episodes import Task
from dreamgym.core.errors import InvalidInputError
from dreamgym.experience.episode import EpisodeRequest, Step, turns_of_history
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.wire.convert import task_from_proto, termination_to_proto

MAX_HISTORY = 1000


def read_task(task: env_pb.Task) -> Task:
    """The task of a request. Raises InvalidInputError if its criterion or metadata is not a JSON object."""
    try:
        read = task_from_proto(task)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(
            f"The task {task.id!r} has a criterion or metadata that is not JSON: {error}."
        ) from error
    if not isinstance(read.metadata, dict) or not isinstance(read.criterion, dict | None):
        raise InvalidInputError(f"Criterion and metadata of the task {task.id!r} must be JSON objects.")
    return read


def read_reset(reset: env_pb.Reset) -> EpisodeRequest:
    """The episode that a reset asks for. Raises InvalidInputError naming the faulty field."""
    if not reset.environment_id:
        raise InvalidInputError("reset.environment_id is empty.")
    if not reset.task.instruction.strip():
        raise InvalidInputError("reset.task.instruction is empty.")
    initial_state, turns = read_history(reset.history)
    return EpisodeRequest(
        environment_id=reset.environment_id,
        task=read_task(reset.task),
        episode_id=reset.episode_id,
        seed=reset.seed,
        max_steps=max(0, reset.max_steps),
        initial_state=initial_state,
        turns=turns,
        replay_cursor=reset.replay_cursor,
        retrieved_per_step=reset.retrieved_per_step,
        self_judged=reset.self_judged,
        dream_share_cap=read_share(reset.dream_share_cap),
        exclude_own_task=reset.exclude_own_task,
    )


def read_share(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise InvalidInputError(f"reset.dream_share_cap is {value}.", remedy="Give a number from 0 to 1.")
    return value


def read_history(history: Iterable[env_pb.Turn]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Initial state and (action, resulting state) turns of a past; empty where there is none."""
    past = [(turn.state, turn.action) for turn in history]
    if not past:
        return "", ()
    if len(past) > MAX_HISTORY:
        raise InvalidInputError(f"reset.history has {len(past)} turns; at most {MAX_HISTORY} are read.")
    if past[-1][1].strip():
        raise InvalidInputError(
            "The last turn of reset.history carries an action.",
            remedy="Let the last turn hold the current state and an empty action; send the action as an Act.",
        )
    return past[0][0], turns_of_history(past[:-1], past[-1][0])


def observation(step: Step, model_version: str) -> env_pb.Observation:
    return env_pb.Observation(
        state=step.state,
        reward=step.reward,
        done=step.done,
        success=step.success,
        reasoning=step.reasoning,
        confidence=step.confidence,
        termination=termination_to_proto(step.termination),
        retrieved=step.retrieved,
        model_version=model_version,
        valid_action=step.valid_action,
        prompt_tokens=step.prompt_tokens,
        completion_tokens=step.completion_tokens,
        world_sheet=step.world_sheet,
    )
