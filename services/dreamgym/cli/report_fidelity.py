"""How well the dream predicts reality: the fidelity stage's result as the report shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dreamgym.cli.report_reading import count, items, number, proportion, section, text
from dreamgym.core.statistics import Proportion, wilson


@dataclass(frozen=True)
class ActionAccuracy:
    """Exactly predicted next states of one kind of action."""

    action: str
    exact: Proportion


@dataclass(frozen=True)
class CalibrationBin:
    """Steps of similar confidence (the middle of their range) and the share of them that was right."""

    confidence: float
    accuracy: float
    n: int | None


@dataclass(frozen=True)
class Mistake:
    """One step that the dream got wrong."""

    task: str
    action: str
    dream: str
    real: str
    reasoning: str


@dataclass(frozen=True)
class Fidelity:
    """Agreement with held-out real transitions; rates are in [0, 1], None where nothing was measured."""

    n: int | None
    state_exact: Proportion | None
    state_similarity: float | None
    success_precision: float | None
    success_recall: float | None
    success_f1: float | None
    done_f1: float | None
    invalid_precision: float | None
    invalid_recall: float | None
    rollout_consistency: Proportion | None
    """Share of recorded episodes whose actions, played again in the dream, have the same outcome."""
    malformed: int | None
    """Steps for which the model wrote nothing that reads as a state; they count as wrong in every rate."""
    by_action: tuple[ActionAccuracy, ...]
    calibration: tuple[CalibrationBin, ...]
    mistakes: tuple[Mistake, ...]


def read_fidelity(result: Mapping[str, Any]) -> Fidelity | None:
    """Read a `measure_fidelity` result; None if the stage has not produced one."""
    if not result:
        return None
    success, invalid = section(result, "success"), section(result, "invalid_action")
    return Fidelity(
        n=count(result, "n"),
        state_exact=proportion(section(result, "state_exact")),
        state_similarity=number(result, "state_similarity"),
        success_precision=number(success, "precision"),
        success_recall=number(success, "recall"),
        success_f1=number(success, "f1"),
        done_f1=number(result, "done_f1"),
        invalid_precision=number(invalid, "precision"),
        invalid_recall=number(invalid, "recall"),
        rollout_consistency=proportion(section(section(result, "rollouts"), "consistency")),
        malformed=count(result, "malformed"),
        by_action=_by_action(section(result, "by_action")),
        calibration=_calibration(result),
        mistakes=tuple(
            Mistake(
                task=_shown(example.get("task")),
                action=text(example, "action"),
                dream=text(example, "dream"),
                real=text(example, "real"),
                reasoning=text(example, "reasoning"),
            )
            for example in items(result, "examples")
        ),
    )


def _by_action(data: Mapping[str, Any]) -> tuple[ActionAccuracy, ...]:
    found = []
    for action, part in data.items():
        n, exact = count(part, "n"), number(part, "exact")
        if n and exact is not None:
            found.append(ActionAccuracy(action, wilson(round(exact * n) if exact <= 1 else round(exact), n)))
    return tuple(sorted(found, key=lambda kind: -kind.exact.n))


def _calibration(result: Mapping[str, Any]) -> tuple[CalibrationBin, ...]:
    found = []
    for part in items(result, "confidence_calibration"):
        confidence, right = _middle(part.get("confidence")), number(part, "exact")
        if confidence is not None and right is not None:
            found.append(CalibrationBin(confidence, right, count(part, "n")))
    return tuple(sorted(found, key=lambda part: part.confidence))


def _middle(confidence: Any) -> float | None:
    """A mean confidence as it is, or the middle of a range written as `0.5 to 0.8`."""
    if isinstance(confidence, str):
        bounds = [float(part) for part in re.findall(r"\d+(?:\.\d+)?", confidence)]
        return sum(bounds) / len(bounds) if bounds else None
    return number({"value": confidence}, "value")


def _shown(task: Any) -> str:
    if isinstance(task, Mapping):
        return text(task, "instruction") or text(task, "id")
    return task if isinstance(task, str) else ""
