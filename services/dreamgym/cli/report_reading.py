"""Reading a job's JSON for the report: anything may be missing, because a report is also made of a job that failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dreamgym.core.statistics import Proportion, wilson


def section(data: Any, key: str) -> Mapping[str, Any]:
    """An object member; an absent one or one of another type reads as empty."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def items(data: Any, key: str) -> list[Mapping[str, Any]]:
    """The objects of a list member; everything else in it is left out."""
    value = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return []
    return [item for item in value if isinstance(item, Mapping)]


def number(data: Any, key: str) -> float | None:
    """A finite number, or None."""
    value = data.get(key) if isinstance(data, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def count(data: Any, key: str) -> int | None:
    """A whole number, or None. Where a count comes split by kind, the sum of its parts."""
    value = data.get(key) if isinstance(data, Mapping) else None
    if isinstance(value, Mapping):
        parts = [number(value, part) for part in value]
        known = [part for part in parts if part is not None]
        return round(sum(known)) if known else None
    found = number(data, key)
    return None if found is None else round(found)


def text(data: Any, key: str) -> str:
    """A text member, or the empty text."""
    value = data.get(key) if isinstance(data, Mapping) else None
    return value if isinstance(value, str) else ""


def proportion(data: Any, *, value: str = "value") -> Proportion | None:
    """A rate, named `value`, with its interval, which is computed where it was not sent. None without a count."""
    rate, n = number(data, value), count(data, "n")
    if rate is None or not n:
        return None
    low, high = number(data, "low"), number(data, "high")
    if low is None or high is None:
        successes = count(data, "successes")
        return wilson(round(rate * n) if successes is None else successes, n)
    return Proportion(rate, low, high, n)


def outcomes(data: Any) -> dict[str, float]:
    """Outcome (0 or 1) by task id."""
    found = section(data, "per_task")
    values = {task: float(value) for task, value in found.items() if isinstance(value, int | float)}
    return {task: value for task, value in values.items() if math.isfinite(value)}


def seconds_between(start: Any, end: Any) -> float | None:
    """Seconds between two times, given as ISO 8601 text or seconds since the epoch."""
    moments = [_moment(value) for value in (start, end)]
    if moments[0] is None or moments[1] is None:
        return None
    return max(0.0, moments[1] - moments[0])


def _moment(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        return None
