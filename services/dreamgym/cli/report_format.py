"""How the report writes quantities, in the terminal and in HTML alike. What was not measured is a dash."""

from __future__ import annotations

from dreamgym.core.statistics import Proportion

ABSENT = "–"


def rate(value: Proportion | None) -> str:
    """`45 % [33, 58] n=60`."""
    if value is None:
        return ABSENT
    return f"{100 * value.value:.0f} % [{100 * value.low:.0f}, {100 * value.high:.0f}] n={value.n}"


def share(value: float | None) -> str:
    return ABSENT if value is None else f"{100 * value:.0f} %"


def decimal(value: float | None, digits: int = 2) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def whole(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}".replace(",", " ")


def duration(seconds: float | None) -> str:
    """`48 s`, `3 min 05 s` or `2 h 04 min`."""
    if seconds is None:
        return ABSENT
    total = round(seconds)
    if total < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def memory(size: int | None) -> str:
    """Bytes as GiB."""
    return ABSENT if size is None else f"{size / 1024**3:.1f} GiB"
