"""Differences over the same tasks."""

from __future__ import annotations

import pytest

from dreamgym.core.paired_outcomes import paired_outcomes


def _outcomes(*values: float) -> dict[str, float]:
    return {f"task-{n}": value for n, value in enumerate(values)}


def test_differences_are_taken_task_by_task() -> None:
    difference = paired_outcomes(_outcomes(0, 0, 1, 1), _outcomes(1, 0, 1, 1))
    assert difference is not None
    assert (difference.value, difference.won, difference.lost, difference.n) == (0.25, 1, 0, 4)


def test_the_interval_is_that_of_bonett_and_price() -> None:
    difference = paired_outcomes(_outcomes(*[0] * 10, *[1] * 2, *[0] * 88), _outcomes(*[1] * 10, *[0] * 2, *[0] * 88))
    assert difference is not None
    # (11 - 3) / 102 -+ 1.959964 * sqrt((14 / 102 - (8 / 102) ** 2) / 102)
    assert difference.low == pytest.approx(0.0784314 - 0.0702676, abs=1e-5)
    assert difference.high == pytest.approx(0.0784314 + 0.0702676, abs=1e-5)
    assert difference.verdict == "helped"


def test_equal_outcomes_still_leave_room_for_doubt() -> None:
    difference = paired_outcomes(_outcomes(1, 0), _outcomes(1, 0))
    assert difference is not None
    assert difference.low < 0 < difference.high


def test_a_single_task_says_almost_nothing() -> None:
    difference = paired_outcomes(_outcomes(0), _outcomes(1))
    assert difference is not None
    assert difference.low < 0


def test_only_tasks_that_both_played_count() -> None:
    difference = paired_outcomes({"a": 1, "b": 0}, {"b": 1, "c": 0})
    assert difference is not None
    assert difference.n == 1
    assert paired_outcomes({"a": 1}, {"b": 1}) is None
