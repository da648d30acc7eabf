"""Plots of the report as inline SVG: no script, no file, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dreamgym.core.statistics import Proportion

_ROW = 26.0
_WIDTH = 900.0


@dataclass(frozen=True)
class IntervalRow:
    """One labelled line of an interval plot: a rate and the style class that colours it."""

    label: str
    rate: Proportion
    style: str


@dataclass(frozen=True)
class Series:
    """One line of a line plot; `points` are (x, y)."""

    name: str
    style: str
    points: tuple[tuple[float, float], ...]
    dots_only: bool = False


def interval_plot(rows: Sequence[IntervalRow], title: str) -> str:
    """Rates from 0 to 100 % as dots with their intervals, one line each; empty text without rows."""
    if not rows:
        return ""
    left = min(300.0, 24 + 7 * max(len(row.label) for row in rows))
    right, top = 150.0, 8.0
    bottom = top + _ROW * len(rows)
    span = _WIDTH - left - right
    parts = [_open(title, _WIDTH, bottom + 26)]
    for tick in range(0, 101, 20):
        x = left + span * tick / 100
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{tick} %</text>')
    for index, row in enumerate(rows):
        y = top + _ROW * (index + 0.5)
        low, mid, high = (left + span * value for value in (row.rate.low, row.rate.value, row.rate.high))
        parts.append(
            f'<text class="label" x="{left - 12:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(row.label)}</text>'
        )
        parts.append(f'<line class="bar {row.style}" x1="{low:.1f}" y1="{y:.1f}" x2="{high:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<circle class="dot {row.style}" cx="{mid:.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(f'<text class="value" x="{left + span + 14:.1f}" y="{y + 4:.1f}">{_rate(row.rate)}</text>')
    return "".join([*parts, "</svg>"])


def line_plot(
    series: Sequence[Series], title: str, *, width: float = 370.0, height: float = 200.0, percent: bool = False
) -> str:
    """Lines over iterations; empty text when there is no point at all. `percent` fixes the range to 0-100 %."""
    points = [point for line in series for point in line.points]
    if not points:
        return ""
    left, right, top, bottom = 56.0, 14.0, 26.0, height - 26.0
    low_x, high_x = _range([x for x, _ in points])
    low_y, high_y = (0.0, 1.0) if percent else _padded([y for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (width - left - right) * (x - low_x) / (high_x - low_x)
        return across, bottom - (bottom - top) * (y - low_y) / (high_y - low_y)

    # As many decimals as neighbouring grid lines need to differ.
    digits = max(0, 1 - math.floor(math.log10((high_y - low_y) / 4)))
    parts = [_open(title, width, height), f'<text class="title" x="{left:.0f}" y="14">{escape(title)}</text>']
    for step in range(5):
        value = low_y + (high_y - low_y) * step / 4
        y = place(low_x, value)[1]
        shown = f"{100 * value:.0f} %" if percent else f"{value:.{digits}f}"
        parts.append(f'<line class="grid" x1="{left:.1f}" y1="{y:.1f}" x2="{width - right:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    for x_value in dict.fromkeys((first, last)):
        x = place(x_value, low_y)[0]
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{x_value:g}</text>')
    for line in series:
        parts += _line(line, [place(x, y) for x, y in line.points])
    return "".join([*parts, "</svg>"])


def calibration_plot(points: Sequence[tuple[float, float]], title: str) -> str:
    """Share that was right over stated confidence; on the diagonal the confidence is honest."""
    if not points:
        return ""
    diagonal = Series("honest", "ideal", ((0.0, 0.0), (1.0, 1.0)))
    return line_plot([diagonal, Series("dream", "dream", tuple(points))], title, percent=True, width=300.0)


def _line(line: Series, placed: Sequence[tuple[float, float]]) -> list[str]:
    parts = []
    if len(placed) > 1 and not line.dots_only:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline class="line {line.style}" points="{path}"/>')
    if line.style != "ideal" and (line.dots_only or len(placed) <= 60):
        radius = 5 if line.dots_only else 2.5
        parts += [f'<circle class="dot {line.style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in placed]
    return parts


def _open(title: str, width: float, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title, quote=True)}" '
        f'style="max-width:{width:.0f}px">'
    )


def _rate(rate: Proportion) -> str:
    return f"{100 * rate.value:.0f} % [{100 * rate.low:.0f}, {100 * rate.high:.0f}] n={rate.n}"


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = (high - low) * 0.08 or abs(high) * 0.1 or 0.1
    return (0.0 if low >= 0 and low - pad < 0 else low - pad), high + pad
