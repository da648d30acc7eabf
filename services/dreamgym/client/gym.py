"""An environment as a `gymnasium.Env` (package extra `gym`): one Gymnasium episode is one play session.

    with DreamGym(url, key) as client:
        env = DreamEnv(client, "household")
        state, info = env.reset(seed=1)
        state, reward, terminated, truncated, info = env.step("go to desk 1")

States and actions are texts. A fault of the platform is raised as its typed error and never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

from dreamgym.client.platform import DreamGym
from dreamgym.client.play import PlaySession
from dreamgym.core.errors import InvalidInputError, NotFoundError

try:
    import gymnasium
except ImportError as error:
    raise ImportError("dreamgym.client.gym needs the package gymnasium: pip install 'dreamgym[gym]'") from error

_TRUNCATIONS = ("step_limit", "budget", "cancelled", "context_overflow")
"""Ends that say nothing about the task: Gymnasium calls them truncations."""
_CHOICE = 1000
"""How many tasks a reset without a task chooses from."""


class AnyText(gymnasium.Space[str]):
    """All texts. `sample` draws from what `choices` offers at the moment."""

    def __init__(self, choices: Callable[[], Sequence[str]] = tuple) -> None:
        super().__init__(shape=(), dtype=None)
        self._choices = choices

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        if mask is not None or probability is not None:
            raise InvalidInputError("Texts are drawn without mask and probability.")
        choices = self._choices()
        return choices[int(self.np_random.integers(len(choices)))] if choices else ""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    __hash__ = None  # type: ignore[assignment]  # as the other spaces


class DreamEnv(gymnasium.Env[str, str]):
    """The dream of an environment, or with `real=True` the real one through the bridge.

    `reset(seed=..., options={"task_id": ...})` fixes the world and the task; without a task one of `split` is drawn.
    `info` holds the task, the instruction, and after a step reasoning, confidence, success, validity and the ids of the
    retrieved transitions. `budget` bounds the real steps of an episode.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        client: DreamGym,
        environment: str,
        *,
        real: bool = False,
        split: str = "train",
        experience_model: str = "latest",
        max_steps: int | None = None,
        budget: int = 100,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = AnyText()
        self.action_space = AnyText(self._open_actions)
        self.render_mode = render_mode
        self._client = client
        self._environment = environment
        self._real = real
        self._split = split
        self._experience_model = experience_model
        self._max_steps = max_steps
        self._budget = budget
        self._tasks: list[str] = []
        self._session: PlaySession | None = None
        self._transcript: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; the one before it is closed. Raises NotFoundError, UnavailableError or another typed error."""
        super().reset(seed=seed)
        self.close()
        unknown = sorted(set(options or {}) - {"task_id"})
        if unknown:
            raise InvalidInputError(f"Unknown reset options: {', '.join(unknown)}.", remedy="Give task_id, or nothing.")
        self._session = self._client.play(
            self._environment,
            real=self._real,
            task_id=(options or {}).get("task_id") or self._drawn(),
            seed=int(self.np_random.integers(2**31)),
            experience_model=self._experience_model,
            max_steps=self._max_steps,
            transition_budget=self._budget,
        )
        start = self._session.start
        self._transcript = [f"Task: {start.instruction}", start.state]
        info = {
            "task_id": start.task_id,
            "instruction": start.instruction,
            "action_format": start.action_format,
            "model_version": start.model_version,
            "admissible_actions": start.admissible_actions,
        }
        return start.state, info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one action. An episode that ended for a reason that is not the task's is truncated."""
        if self._session is None:
            raise InvalidInputError("The episode has not begun or is over.", remedy="Call reset first.")
        seen = self._session.act(action)
        self._transcript += [f"> {action}", seen.state]
        truncated = seen.done and seen.termination in _TRUNCATIONS
        info = {
            "success": seen.success,
            "valid_action": seen.valid_action,
            "reasoning": seen.reasoning,
            "confidence": seen.confidence,
            "termination": seen.termination,
            "retrieved": seen.retrieved,
            "admissible_actions": seen.admissible_actions,
        }
        if seen.done:
            self.close()
        return seen.state, seen.reward, seen.done and not truncated, truncated, info

    def render(self) -> str | None:
        """The episode so far, with render mode `ansi`."""
        return "\n".join(self._transcript) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Give the episode back."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _drawn(self) -> str:
        if not self._tasks:
            listed = self._client.environments.tasks(self._environment, split=self._split, limit=_CHOICE)
            self._tasks = [str(task["id"]) for task in listed]
        if not self._tasks:
            raise NotFoundError(
                f"The environment {self._environment!r} has no task of split {self._split!r}.",
                remedy="Name another split, or reset with options={'task_id': ...}.",
            )
        return self._tasks[int(self.np_random.integers(len(self._tasks)))]

    def _open_actions(self) -> Sequence[str]:
        listed = self._session.observation.admissible_actions if self._session is not None else []
        return listed or ("look",)
