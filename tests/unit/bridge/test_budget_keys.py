"""Budgets without a database: their names and what a reset must say."""

from __future__ import annotations

import pytest

from dreamgym.bridge.budget import BudgetKey, BudgetState
from dreamgym.bridge.reset_request import read_reset
from dreamgym.core.errors import InvalidInputError
from dreamgym.v1 import environment_pb2 as pb


def test_a_budget_without_a_name_is_the_default_one_of_its_job() -> None:
    assert BudgetKey.of("job", "") == BudgetKey("job", "default")
    assert BudgetKey.of("job", "stage-2") != BudgetKey.of("job", "")


def test_a_real_episode_without_a_job_has_no_budget_and_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="job_id"):
        BudgetKey.of("", "default")


def test_what_is_left_is_the_limit_less_what_is_used() -> None:
    assert BudgetState(limit=25, used=24).left == 1


def test_a_reset_without_an_episode_id_gets_one_of_its_own() -> None:
    reset = pb.Reset(adapter="corridor", job_id="job", task=pb.Task(id="t"))
    first, second = read_reset(reset), read_reset(reset)
    assert first.ids.episode_id != second.ids.episode_id


@pytest.mark.parametrize("field", ["job_id", "episode_id", "environment_id", "adapter", "policy_version", "budget_id"])
@pytest.mark.parametrize("value", ["a\0b", "x" * 501])
def test_an_identifier_that_the_database_could_not_keep_is_refused_by_name(field: str, value: str) -> None:
    reset = pb.Reset(adapter="corridor", job_id="job")
    setattr(reset, field, value)
    with pytest.raises(InvalidInputError, match=f"Reset.{field}"):
        read_reset(reset)


@pytest.mark.parametrize("metadata", ["[1]", "{", '"text"'])
def test_metadata_that_is_no_json_object_is_refused(metadata: str) -> None:
    with pytest.raises(InvalidInputError, match=r"Reset\.task"):
        read_reset(pb.Reset(adapter="corridor", job_id="job", task=pb.Task(id="t", metadata=metadata)))
