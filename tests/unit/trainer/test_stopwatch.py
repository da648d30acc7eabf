"""The time limit of a stage."""

from __future__ import annotations

import pytest

from dreamgym.trainer.stages.context import Stopwatch


@pytest.mark.parametrize(
    ("limit", "ahead", "exceeded"),
    [(None, 1e9, False), (180, 0, False), (180, 30, False), (180, 60, True), (130, 0, True)],
)
def test_what_would_end_after_the_limit_counts_as_over_it(limit: float | None, ahead: float, exceeded: bool) -> None:
    assert Stopwatch(already=140).exceeded(limit, ahead) is exceeded
