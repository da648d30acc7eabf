"""Converters between the core's values and the protobuf messages."""

from __future__ import annotations

from typing import Any

import orjson

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.v1 import replay_pb2 as replay_pb

_TERMINATION = {
    reason: env_pb.TerminationReason.Value(f"TERMINATION_REASON_{reason.name}") for reason in TerminationReason
}
_TERMINATION_BACK = {value: reason for reason, value in _TERMINATION.items()}
_SOURCE = {source: replay_pb.Source.Value(f"SOURCE_{source.name}") for source in Source}
_SOURCE_BACK = {value: source for source, value in _SOURCE.items()}


def termination_to_proto(reason: TerminationReason | None) -> env_pb.TerminationReason.ValueType:
    if reason is None:
        return env_pb.TERMINATION_REASON_UNSPECIFIED
    return _TERMINATION[reason]


def termination_from_proto(value: int) -> TerminationReason | None:
    return _TERMINATION_BACK.get(value)  # type: ignore[call-overload, no-any-return]


def source_to_proto(source: Source) -> replay_pb.Source.ValueType:
    return _SOURCE[source]


def source_from_proto(value: int) -> Source:
    return _SOURCE_BACK[value]  # type: ignore[index]


def task_to_proto(task: Task) -> env_pb.Task:
    return env_pb.Task(
        id=task.id,
        instruction=task.instruction,
        initial_state=task.initial_state,
        criterion=dump_json(task.criterion) if task.criterion else "",
        metadata=dump_json(task.metadata) if task.metadata else "",
        split=task.split,
        parent_id=task.parent_id,
    )


def task_from_proto(task: env_pb.Task) -> Task:
    return Task(
        id=task.id,
        instruction=task.instruction,
        initial_state=task.initial_state,
        criterion=load_json(task.criterion) if task.criterion else None,
        metadata=load_json(task.metadata) if task.metadata else {},
        split=task.split or "train",
        parent_id=task.parent_id,
    )


def transition_from_observation(state: str, action: str, seen: env_pb.Observation) -> Transition:
    """The step that an action in `state` was answered with."""
    return Transition(
        state=state,
        action=action,
        next_state=seen.state,
        reward=seen.reward,
        done=seen.done,
        success=seen.success,
        reasoning=seen.reasoning,
        confidence=seen.confidence,
        valid_action=seen.valid_action,
    )


def episode_to_proto(
    episode: Episode, *, environment_id: str, job_id: str = "", policy_version: str = "", model_version: str = ""
) -> replay_pb.StoredEpisode:
    return replay_pb.StoredEpisode(
        episode_id=episode.id,
        environment_id=environment_id,
        task_id=episode.task.id,
        instruction=episode.task.instruction,
        source=source_to_proto(episode.source),
        split=episode.task.split,
        termination=episode.termination.value,
        success=episode.success,
        job_id=job_id,
        policy_version=policy_version,
        model_version=model_version,
        metadata=dump_json(episode.metadata) if episode.metadata else "",
        transitions=[
            replay_pb.StoredTransition(
                step=step,
                state=t.state,
                action=t.action,
                reasoning=t.reasoning,
                next_state=t.next_state,
                reward=t.reward,
                done=t.done,
                success=t.success,
                confidence=t.confidence,
                valid_action=t.valid_action,
            )
            for step, t in enumerate(episode.transitions)
        ],
    )


def episode_from_proto(stored: replay_pb.StoredEpisode) -> Episode:
    """The episode as stored; its task carries only id, instruction, split and first state."""
    first = stored.transitions[0].state if stored.transitions else ""
    return Episode(
        id=stored.episode_id,
        task=Task(id=stored.task_id, instruction=stored.instruction, initial_state=first, split=stored.split),
        source=source_from_proto(stored.source),
        transitions=tuple(
            Transition(
                state=t.state,
                action=t.action,
                next_state=t.next_state,
                reward=t.reward,
                done=t.done,
                success=t.success,
                reasoning=t.reasoning,
                confidence=t.confidence,
                valid_action=t.valid_action,
            )
            for t in stored.transitions
        ),
        termination=TerminationReason(stored.termination or "failure"),
        metadata=load_json(stored.metadata) if stored.metadata else {},
    )


def dump_json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def load_json(text: str) -> Any:
    return orjson.loads(text)
