from __future__ import annotations

from typing import Any

import pytest

from dreamgym.core.errors import InvalidInputError
from dreamgym.core.jobs import PipelineJob, parse_job, parse_stage, stages_of

KINDS = ["train_experience_model", "measure_fidelity", "train_policy", "evaluate", "sim_to_real"]


def test_a_kind_and_an_environment_are_enough_for_a_pipeline() -> None:
    job = parse_job({"kind": "pipeline", "environment": "x"})
    assert isinstance(job, PipelineJob)
    kinds = [stage.kind for stage in stages_of(job)]
    assert set(kinds) == set(KINDS)
    assert kinds.index("train_experience_model") < kinds.index("train_policy") < kinds.index("sim_to_real")


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_a_single_kind_is_one_stage_of_that_kind(kind: str) -> None:
    (stage,) = stages_of(parse_job({"kind": kind, "environment": "x", "name": "n"}))
    assert stage == parse_stage({"kind": kind})


def test_a_single_stage_keeps_what_the_job_set() -> None:
    (stage,) = stages_of(parse_job({"kind": "evaluate", "environment": "x", "seed": 7, "episodes": 3}))
    assert stage == parse_stage({"kind": "evaluate", "seed": 7, "episodes": 3})


def test_a_job_survives_being_stored_as_json() -> None:
    job = parse_job({"kind": "pipeline", "environment": "x"})
    assert parse_job(job.model_dump(mode="json")) == job
    assert all(parse_stage(stage.model_dump(mode="json")) == stage for stage in stages_of(job))


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"kind": "pipeline", "environment": "x", "learning_rat": 1}, ["learning_rat"]),
        ({"kind": "train_policy", "environment": "x", "optimizer": {"lr": 1}}, ["optimizer.lr"]),
        ({"kind": "pipeline", "environment": "x", "stages": [{"kind": "evaluate", "a": 1, "b": 2}]}, ["a", "b"]),
    ],
)
def test_an_unknown_field_is_refused_by_name(data: Any, names: list[str]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_job(data)
    for name in names:
        assert name in caught.value.message
        assert name.rpartition(".")[2] in caught.value.remedy


@pytest.mark.parametrize("kind", ["train_policy", "sim_to_real"])
def test_a_group_of_one_is_refused(kind: str) -> None:
    with pytest.raises(InvalidInputError, match=r"group_size.*greater than or equal to 2"):
        parse_job({"kind": kind, "environment": "x", "group_size": 1})
    assert parse_job({"kind": kind, "environment": "x", "group_size": 2})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "pipeline",
        {},
        {"kind": "pipeline"},
        {"kind": "pipeline", "environment": ""},
        {"kind": "dream", "environment": "x"},
        {"kind": "pipeline", "environment": "x", "stages": []},
        {"kind": "evaluate", "environment": "x", "rollouts": {"temperature": -1}},
        {"kind": "train_policy", "environment": "x", "optimizer": {"learning_rate": float("nan")}},
    ],
)
def test_what_is_no_job_is_refused_with_a_remedy(data: Any) -> None:
    with pytest.raises(InvalidInputError, match="This job is not valid") as caught:
        parse_job(data)
    assert caught.value.remedy


@pytest.mark.parametrize("field", ["epochs", "time_limit_s", "kl_coefficient", "clip_low"])
def test_a_number_that_is_not_finite_is_refused(field: str) -> None:
    with pytest.raises(InvalidInputError, match=field):
        parse_job({"kind": "train_policy", "environment": "x", field: float("inf")})
