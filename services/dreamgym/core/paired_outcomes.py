"""Differences between two policies that played the same tasks, with intervals that hold for few tasks too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dreamgym.core.statistics import Z_95

Verdict = Literal["helped", "harmed", "no measurable effect"]


@dataclass(frozen=True)
class Difference:
    """Mean of after - before over `n` tasks that both played, in [-1, 1], with a 95 % interval."""

    value: float
    low: float
    high: float
    n: int
    won: int
    """Tasks that failed before and succeed after."""
    lost: int
    """Tasks that succeeded before and fail after."""

    @property
    def verdict(self) -> Verdict:
        if self.low > 0:
            return "helped"
        return "harmed" if self.high < 0 else "no measurable effect"

    def __str__(self) -> str:
        return f"{points(self.value)} points [{points(self.low)}, {points(self.high)}], n={self.n}"


def points(share: float) -> str:
    """A share as signed percentage points without decimals; a rounded zero carries no sign."""
    rounded = round(100 * share)
    return f"{rounded:+d}" if rounded else "0"


def paired_outcomes(before: Mapping[str, float], after: Mapping[str, float], z: float = Z_95) -> Difference | None:
    """Compare outcomes (0 or 1) by task id; None when the two share no task.

    The interval is the adjusted Wald interval of Bonett and Price (2012): one is added to either discordant cell. Unlike
    the plain normal interval it does not shrink to a point when no task changed, nor when all of a few did.
    """
    shared = before.keys() & after.keys()
    if not shared:
        return None
    won = sum(before[task] < 0.5 <= after[task] for task in shared)
    lost = sum(after[task] < 0.5 <= before[task] for task in shared)
    n = len(shared)
    up, down = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    half = z * math.sqrt(max(0.0, up + down - (up - down) ** 2) / (n + 2))
    return Difference(
        value=(won - lost) / n,
        low=max(-1.0, up - down - half),
        high=min(1.0, up - down + half),
        n=n,
        won=won,
        lost=lost,
    )
