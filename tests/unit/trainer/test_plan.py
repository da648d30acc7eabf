"""What a reinforcement stage's settings mean for an iteration."""

from __future__ import annotations

from dreamgym.core.jobs import TrainPolicy
from dreamgym.trainer.stages.iteration import plan_of


def test_the_step_limit_grows_in_equal_stretches_up_to_the_rollouts_own() -> None:
    plan = plan_of(TrainPolicy(iterations=9, horizon_steps=(5, 10, 40)))
    assert [plan.rollouts_of(i).max_steps for i in range(9)] == [5, 5, 5, 10, 10, 10, 15, 15, 15]
    short = plan_of(TrainPolicy(iterations=2, horizon_steps=(5, 10, 15)))
    assert [short.rollouts_of(i).max_steps for i in range(2)] == [5, 10]
    assert plan_of(TrainPolicy()).rollouts_of(3) == TrainPolicy().rollouts
