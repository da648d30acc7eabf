"""Reads and checks what callers send: whatever leaves this module can be stored and searched."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import orjson

from dreamgym.core.episodes import Source, TerminationReason
from dreamgym.core.errors import InvalidInputError
from dreamgym.replay.admission import Admission
from dreamgym.replay.records import EpisodeRecord, Filters, Query, TransitionRecord
from dreamgym.replay.settings import ReplaySettings
from dreamgym.v1 import replay_pb2 as pb
from dreamgym.wire.convert import source_from_proto

NAME_CHARACTERS_MAX = 200
"""Ids, splits and versions are keys of indexes, whose entries are small."""
_TERMINATIONS = frozenset(reason.value for reason in TerminationReason)


def read_episode(message: pb.StoredEpisode, settings: ReplaySettings) -> EpisodeRecord:
    """The episode as it will be stored; InvalidInputError names the episode, the step and the field."""
    name = f"Episode {message.episode_id[:NAME_CHARACTERS_MAX]!r}"
    longest = settings.replay_text_characters_max
    try:
        for field in ("episode_id", "environment_id"):
            _name(getattr(message, field), field, required=True)
        for field in ("task_id", "split", "job_id", "policy_version", "model_version"):
            _name(getattr(message, field), field)
        _text(message.instruction, "instruction", longest)
        if message.termination and message.termination not in _TERMINATIONS:
            known = ", ".join(sorted(_TERMINATIONS))
            raise InvalidInputError(f"termination {message.termination[:50]!r} is none of {known}.")
        return EpisodeRecord(
            episode_id=message.episode_id,
            environment_id=message.environment_id,
            task_id=message.task_id,
            instruction=message.instruction,
            source=_source(message.source),
            split=message.split or "train",
            termination=message.termination,
            success=message.success,
            job_id=message.job_id,
            policy_version=message.policy_version,
            model_version=message.model_version,
            metadata=_metadata(message.metadata, longest),
            transitions=_transitions(message.transitions, settings),
        )
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}: {error.message}", remedy=error.remedy or "Correct the episode.") from None


def read_queries(request: pb.SearchRequest, settings: ReplaySettings) -> list[Query]:
    """The queries of a search; InvalidInputError names the query and the field."""
    if len(request.queries) > settings.replay_queries_max:
        raise InvalidInputError(
            f"A search of {len(request.queries)} queries is too large.",
            remedy=f"Send at most {settings.replay_queries_max} at once.",
        )
    queries = []
    for number, query in enumerate(request.queries):
        try:
            _text(query.state, "state", settings.replay_text_characters_max)
            _text(query.action, "action", settings.replay_text_characters_max, required=True)
            _name(query.exclude_episode_id, "exclude_episode_id")
            _name(query.exclude_task_id, "exclude_task_id")
        except InvalidInputError as error:
            raise InvalidInputError(f"Query {number}: {error.message}", remedy="Correct the query.") from None
        queries.append(Query(query.state, query.action, query.exclude_episode_id, query.exclude_task_id))
    return queries


def read_top_k(request: pb.SearchRequest, settings: ReplaySettings) -> int:
    if not 1 <= request.top_k <= settings.replay_top_k_max:
        raise InvalidInputError(
            f"top_k is {request.top_k}.", remedy=f"Ask for 1 to {settings.replay_top_k_max} hits per query."
        )
    return request.top_k


def read_filters(request: pb.SearchRequest) -> Filters:
    _share(request.minimum_confidence, "minimum_confidence")
    _share(request.dream_share_cap, "dream_share_cap")
    return Filters(
        sources=read_sources(request.sources),
        splits=read_splits(request.splits),
        minimum_confidence=request.minimum_confidence,
        cursor=read_cursor(request.cursor),
        dream_share_cap=request.dream_share_cap,
    )


def read_sample(request: pb.SampleRequest, settings: ReplaySettings) -> tuple[int, Filters]:
    """How many transitions to draw, and from which."""
    if not 1 <= request.count <= settings.replay_sample_max:
        raise InvalidInputError(
            f"count is {request.count}.", remedy=f"Ask for 1 to {settings.replay_sample_max} transitions."
        )
    _share(request.minimum_confidence, "minimum_confidence")
    return request.count, Filters(
        sources=read_sources(request.sources),
        splits=read_splits(request.splits),
        minimum_confidence=request.minimum_confidence,
        cursor=read_cursor(request.cursor),
    )


def read_transition_ids(request: pb.GetRequest, settings: ReplaySettings) -> list[int]:
    if len(request.transition_ids) > settings.replay_sample_max:
        raise InvalidInputError(
            f"{len(request.transition_ids)} transitions are too many.",
            remedy=f"Ask for at most {settings.replay_sample_max} at once.",
        )
    return list(request.transition_ids)


def read_admission(message: pb.Admission) -> Admission:
    _share(message.minimum_confidence, "admission.minimum_confidence")
    if message.dream_transitions_max < 0:
        raise InvalidInputError(
            f"admission.dream_transitions_max is {message.dream_transitions_max}.",
            remedy="Give a number, or 0 for no limit.",
        )
    return Admission(message.enrich, message.minimum_confidence, message.dream_transitions_max)


def read_environment_id(value: str) -> str:
    try:
        return _name(value, "environment_id", required=True)
    except InvalidInputError as error:
        raise InvalidInputError(error.message, remedy="Name the environment whose data is meant.") from None


def is_name(value: str) -> bool:
    """Whether something can be stored under this name."""
    try:
        return bool(_name(value, "name", required=True))
    except InvalidInputError:
        return False


def read_episode_ids(values: Iterable[str]) -> list[str]:
    return [_name(value, "episode_id", required=True) for value in values]


def read_sources(values: Iterable[int]) -> frozenset[Source]:
    return frozenset(_source(value) for value in values)


def read_splits(values: Iterable[str]) -> frozenset[str]:
    return frozenset(_name(value, "split", required=True) for value in values)


def read_cursor(value: int) -> int:
    if value < 0:
        raise InvalidInputError(f"cursor is {value}.", remedy="Give the cursor of a Statistics answer, or 0.")
    return value


def _transitions(messages: Iterable[pb.StoredTransition], settings: ReplaySettings) -> tuple[TransitionRecord, ...]:
    records: list[TransitionRecord] = []
    for message in messages:
        if len(records) == settings.replay_episode_transitions_max:
            raise InvalidInputError(f"it has more than {len(records)} transitions.", remedy="Split the episode.")
        try:
            records.append(_transition(message, settings.replay_text_characters_max))
        except InvalidInputError as error:
            raise InvalidInputError(f"step {message.step}: {error.message}", remedy=error.remedy) from None
        if len(records) > 1 and records[-1].step <= records[-2].step:
            raise InvalidInputError(
                f"step {records[-1].step} follows step {records[-2].step}.",
                remedy="Number the steps upwards from 0, in the order of acting.",
            )
    if not records:
        raise InvalidInputError("it has no transitions.", remedy="Leave out episodes in which nothing was done.")
    return tuple(records)


def _transition(message: pb.StoredTransition, longest: int) -> TransitionRecord:
    if message.step < 0:
        raise InvalidInputError("the step is negative.", remedy="Number the steps upwards from 0.")
    if not math.isfinite(message.reward):
        raise InvalidInputError(f"reward {message.reward} is not a finite number.")
    if not 0.0 <= message.confidence <= 1.0:
        raise InvalidInputError(
            f"confidence {message.confidence} is not from 0 to 1.", remedy="Observed transitions have confidence 1."
        )
    return TransitionRecord(
        step=message.step,
        state=_text(message.state, "state", longest),
        action=_text(message.action, "action", longest, required=True),
        reasoning=_text(message.reasoning, "reasoning", longest),
        next_state=_text(message.next_state, "next_state", longest),
        reward=message.reward,
        done=message.done,
        success=message.success,
        valid_action=message.valid_action,
        confidence=message.confidence,
    )


def _source(value: int) -> Source:
    try:
        return source_from_proto(value)
    except KeyError:
        raise InvalidInputError(f"source {value} is not known.", remedy="Give SEED, DREAM or REAL.") from None


def _name(value: str, field: str, *, required: bool = False) -> str:
    return _text(value, field, NAME_CHARACTERS_MAX, required=required)


def _text(value: str, field: str, longest: int, *, required: bool = False) -> str:
    if required and not value.strip():
        raise InvalidInputError(f"{field} is empty.")
    if len(value) > longest:
        raise InvalidInputError(f"{field} has {len(value)} characters, more than {longest}.", remedy="Shorten it.")
    if "\0" in value:
        raise InvalidInputError(
            f"{field} has a NUL character at position {value.index(chr(0))}.",
            remedy="Remove it: the database cannot store it.",
        )
    return value


def _metadata(text: str, longest: int) -> dict[str, Any]:
    if not text:
        return {}
    _text(text, "metadata", longest)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(f"metadata is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"metadata is a JSON {type(value).__name__}, not an object.")
    # An escaped backslash before u0000 is ordinary text, so those go first.
    if b"\\u0000" in orjson.dumps(value).replace(rb"\\", b""):
        raise InvalidInputError("metadata has a NUL character.", remedy="Remove it: the database cannot store it.")
    return value


def _share(value: float, field: str) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidInputError(f"{field} is {value}.", remedy="Give a number from 0 to 1.")
