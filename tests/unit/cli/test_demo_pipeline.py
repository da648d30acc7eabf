"""The demo's job is one that the platform accepts, and compares like with like."""

import pytest

from dreamgym.cli.demo_pipeline import pipeline
from dreamgym.core.jobs import Evaluate, PipelineJob, SimToReal, TrainPolicy, parse_job


@pytest.mark.parametrize("quick", [True, False])
def test_the_platform_accepts_the_demo(quick: bool) -> None:
    job = parse_job(pipeline(quick=quick))
    assert isinstance(job, PipelineJob)
    assert job.environment == "household"


@pytest.mark.parametrize("quick", [True, False])
def test_every_evaluation_plays_the_same_tasks_in_both_worlds(quick: bool) -> None:
    job = parse_job(pipeline(quick=quick))
    assert isinstance(job, PipelineJob)
    evaluations = [stage for stage in job.stages if isinstance(stage, Evaluate)]
    assert len({(stage.seed, stage.split, stage.episodes, stage.where) for stage in evaluations}) == 1
    assert evaluations[0].where == "both"
    assert len({stage.label for stage in evaluations}) == 3


@pytest.mark.parametrize("quick", [True, False])
def test_an_evaluation_stands_between_any_two_stages_that_change_the_policy(quick: bool) -> None:
    job = parse_job(pipeline(quick=quick))
    assert isinstance(job, PipelineJob)
    kinds = ["train" if isinstance(s, TrainPolicy | SimToReal) else "eval" for s in job.stages[2:]]
    assert kinds == ["train", "eval"] * 3


def test_the_time_limits_of_each_demo_leave_room_in_its_promise() -> None:
    for quick, promise_s in ((True, 300), (False, 900)):
        limits = [stage.get("time_limit_s", 0) for stage in pipeline(quick=quick)["stages"]]
        assert sum(limits) <= 0.75 * promise_s
