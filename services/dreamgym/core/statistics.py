"""Intervals that every reported success rate carries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Proportion:
    """A success rate with its 95 % Wilson interval and the number of episodes behind it."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{100 * self.value:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}] (n={self.n})"


def wilson(successes: int, n: int, z: float = Z_95) -> Proportion:
    """Wilson score interval (Wilson 1927). With n = 0 nothing is known: the interval is [0, 1]."""
    if n == 0:
        return Proportion(0.0, 0.0, 1.0, 0)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Proportion(p, max(0.0, centre - half), min(1.0, centre + half), n)


def reward_variance(rewards: Sequence[float]) -> float:
    """V = (1/n) sum (r_i - mean r)^2 (METHOD section 5); 0 for an empty group."""
    if not rewards:
        return 0.0
    mean = sum(rewards) / len(rewards)
    return sum((r - mean) ** 2 for r in rewards) / len(rewards)
