"""Tasks, transitions and episodes (METHOD section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Source(StrEnum):
    """Where a transition comes from."""

    SEED = "seed"  # uploaded by the customer
    DREAM = "dream"  # synthesized by the experience model
    REAL = "real"  # collected by the bridge


class TerminationReason(StrEnum):
    """Why an episode ended; the same for dream and real. Exactly one per episode."""

    SUCCESS = "success"
    FAILURE = "failure"
    STEP_LIMIT = "step_limit"
    INVALID_ACTIONS = "invalid_actions"
    CONTEXT_OVERFLOW = "context_overflow"
    CANCELLED = "cancelled"
    BUDGET = "budget"
    INFRASTRUCTURE = "infrastructure"

    @property
    def is_outcome(self) -> bool:
        """True if the episode says something about the policy; the others leave the batch and are counted."""
        return self in _OUTCOMES


_OUTCOMES = frozenset(
    {
        TerminationReason.SUCCESS,
        TerminationReason.FAILURE,
        TerminationReason.STEP_LIMIT,
        TerminationReason.INVALID_ACTIONS,
        TerminationReason.CONTEXT_OVERFLOW,
    }
)


@dataclass(frozen=True)
class Task:
    """One instruction, with an optional first state and an optional success criterion (see `core.criteria`)."""

    id: str
    instruction: str
    initial_state: str = ""
    criterion: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"
    parent_id: str = ""


@dataclass(frozen=True)
class Transition:
    """`(s_t, a_t, R_t, s_{t+1}, r_{t+1}, done, success)`, and whether the environment accepted the action."""

    state: str
    action: str
    next_state: str
    reward: float = 0.0
    done: bool = False
    success: bool = False
    reasoning: str = ""
    confidence: float = 1.0
    valid_action: bool = True


@dataclass(frozen=True)
class Episode:
    """The transitions of one attempt at one task."""

    id: str
    task: Task
    source: Source
    transitions: tuple[Transition, ...]
    termination: TerminationReason
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        return self.termination is TerminationReason.SUCCESS
