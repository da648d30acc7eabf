"""What every real environment must offer, and the values that pass through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dreamgym.core.errors import ConflictError, InvalidInputError


class TaskSpecError(InvalidInputError):
    """The task specification does not describe a task of this environment."""


class EpisodeStateError(ConflictError):
    """A step was asked for while no episode is running."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """What a caller needs to know of an environment before it plays.

    name: the name under which the registry knows it.
    description: the domain and the format of an action, in the words that a prompt may use.
    max_steps: step limit of one episode when the task names none.
    lists_admissible_actions: True if every state carries all the actions that the engine would take.
    """

    name: str
    description: str
    max_steps: int
    lists_admissible_actions: bool


@dataclass(frozen=True, slots=True)
class AdapterState:
    """What the environment shows after a reset or a step.

    state: the observation as text.
    reward: the environment's own reward for the step just made; 0.0 after a reset.
    done: the environment has ended the episode. Step limits are the caller's affair.
    success: the environment's own verdict that the task is solved.
    admissible_actions: every action the engine would take now, sorted; empty if it lists none.
    valid_action: False if the engine refused the action; the state is then as before.
    expert_action: what a scripted expert would do next; None if none was asked for.
    """

    state: str
    reward: float = 0.0
    done: bool = False
    success: bool = False
    admissible_actions: tuple[str, ...] = ()
    valid_action: bool = True
    expert_action: str | None = None


@runtime_checkable
class EnvironmentAdapter(Protocol):
    """One real environment, one episode at a time.

    Not safe for concurrent use. Every method may raise `AdapterError` (the environment itself failed) or
    `AdapterMissingError` (its package is not there), both of `core.errors`; a failure never appears as a reward of 0.
    """

    def describe(self) -> AdapterInfo:
        """Tell name, domain, action format and defaults; needs no engine and no episode."""

    def reset(self, task_spec: Mapping[str, Any], seed: int) -> AdapterState:
        """Start the task. The same specification and seed give the same episode for the same actions.

        Raises `TaskSpecError` for a task that this environment does not have.
        """

    def step(self, action: str) -> AdapterState:
        """Perform one action of the running episode. Raises `EpisodeStateError` if none is running."""

    def close(self) -> None:
        """Free what the environment holds. May be called twice."""
