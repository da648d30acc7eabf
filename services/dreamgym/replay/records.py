"""What the replay store keeps and answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dreamgym.core.episodes import Source


@dataclass(frozen=True, slots=True)
class TransitionRecord:
    """One step of an episode. `id` is 0 until it is stored."""

    step: int
    state: str
    action: str
    reasoning: str
    next_state: str
    reward: float
    done: bool
    success: bool
    valid_action: bool
    confidence: float
    id: int = 0


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode with its provenance."""

    episode_id: str
    environment_id: str
    task_id: str
    instruction: str
    source: Source
    split: str
    termination: str
    success: bool
    job_id: str
    policy_version: str
    model_version: str
    metadata: Mapping[str, Any]
    transitions: tuple[TransitionRecord, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for, and which episode and task to leave out (empty: none)."""

    state: str
    action: str
    exclude_episode_id: str = ""
    exclude_task_id: str = ""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which transitions may be found at all. Empty sources or splits mean all of them; cursor 0 means no limit."""

    sources: frozenset[Source] = frozenset()
    splits: frozenset[str] = frozenset()
    minimum_confidence: float = 0.0
    cursor: int = 0
    dream_share_cap: float = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored transition and its cosine similarity to the query, -1 to 1."""

    transition: TransitionRecord
    similarity: float
    source: Source
    episode_id: str
    instruction: str


@dataclass(frozen=True, slots=True)
class Found:
    """A stored transition with where it comes from."""

    transition: TransitionRecord
    source: Source
    episode_id: str
    instruction: str


class RejectionCode(StrEnum):
    """Why an appended episode was not stored; rejections are counted by it."""

    INVALID = "invalid"
    REAL_ONLY = "real_only"
    UNFINISHED = "unfinished"
    LOW_CONFIDENCE = "low_confidence"
    DREAM_FULL = "dream_full"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An episode that was not stored."""

    episode_id: str
    code: RejectionCode
    reason: str
    transitions: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What an append did."""

    episodes: int = 0
    transitions: int = 0
    already_stored: int = 0
    dream_transitions: int = 0
    """Of the transitions, those of dreams."""
    refusals: tuple[Refusal, ...] = ()

    def __add__(self, other: Stored) -> Stored:
        return Stored(
            self.episodes + other.episodes,
            self.transitions + other.transitions,
            self.already_stored + other.already_stored,
            self.dream_transitions + other.dream_transitions,
            self.refusals + other.refusals,
        )


@dataclass(frozen=True, slots=True)
class RejectionCount:
    """How many appended episodes were not stored for one reason; one that is sent again is counted again."""

    code: str
    episodes: int
    transitions: int


@dataclass(frozen=True, slots=True)
class SourceCount:
    """How much there is of one source and split."""

    source: Source
    split: str
    episodes: int
    transitions: int
    successes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """What an environment holds; `encoder` is empty if nothing was ever stored."""

    counts: tuple[SourceCount, ...] = ()
    cursor: int = 0
    encoder: str = ""
    rejections: tuple[RejectionCount, ...] = ()
