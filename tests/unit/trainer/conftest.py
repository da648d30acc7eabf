from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.jobs import Optimizer
from dreamgym.trainer.training_state import TrainingState

MakeState = Callable[..., TrainingState]
MakeEpisode = Callable[..., Episode]


@pytest.fixture
def make_state(tiny_model: Path) -> MakeState:
    """A training state over the tiny model; fields are the optimiser's."""

    def make(total_steps: int = 10, **fields: object) -> TrainingState:
        settings = {"learning_rate": 0.01, "warmup_steps": 2, **fields}
        return TrainingState(tiny_model, Optimizer.model_validate(settings), total_steps)

    return make


@pytest.fixture
def make_episode() -> MakeEpisode:
    """An episode from (action, state) turns after a first state; its end carries the flags of its termination."""

    def make(
        name: str,
        turns: Sequence[tuple[str, str]],
        *,
        task: str = "t",
        termination: TerminationReason = TerminationReason.SUCCESS,
        refused: Sequence[int] = (),
        first_state: str = "A room.",
    ) -> Episode:
        states = [first_state, *(state for _, state in turns)]
        won = termination is TerminationReason.SUCCESS
        transitions = tuple(
            Transition(
                state=states[step],
                action=action,
                next_state=state,
                reward=float(won and step + 1 == len(turns)),
                done=termination in (TerminationReason.SUCCESS, TerminationReason.FAILURE) and step + 1 == len(turns),
                success=won and step + 1 == len(turns),
                valid_action=step not in refused,
            )
            for step, (action, state) in enumerate(turns)
        )
        return Episode(name, Task(task, "open the door"), Source.SEED, transitions, termination)

    return make
