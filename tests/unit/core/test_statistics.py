from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.core.statistics import reward_variance, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe 1998, table I (score method without continuity correction).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_gives_the_published_intervals(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert interval.value == successes / n
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


def test_without_episodes_nothing_is_known() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_lies_in_0_to_1_around_its_value(case: tuple[int, int]) -> None:
    interval = wilson(*case)
    assert 0 <= interval.low <= interval.value + 1e-12
    assert interval.value - 1e-12 <= interval.high <= 1


@pytest.mark.parametrize(("rewards", "variance"), [([], 0), ([1, 1], 0), ([0, 1], 0.25), ([0, 0, 0, 1], 0.1875)])
def test_reward_variance_is_the_population_variance(rewards: list[float], variance: float) -> None:
    assert reward_variance(rewards) == variance
