"""Measures of an experience model on held-out real transitions (METHOD section 3). Pure: predictions in, numbers out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

from dreamgym.core.episodes import Transition
from dreamgym.core.policy_prompt import one_line
from dreamgym.core.statistics import wilson

EXAMPLES = 12
STEP_BANDS = {"0 to 2": 0, "3 to 5": 3, "6 to 9": 6, "from 10": 10}
"""Groups of step indices by which accuracy is reported, with the first of each."""
RESAMPLES = 400


@dataclass(frozen=True)
class Prediction:
    """One real transition and what the dream made of it; `predicted` is None if its output was malformed.

    `predicted.success` is decided as in the dream (by the task's criterion where it has one), `self_judged` by the model.
    """

    instruction: str
    real: Transition
    predicted: Transition | None
    self_judged: bool = False
    tokens: int = 0
    step: int = 0
    """Index of the transition in its episode, from 0."""


@dataclass(frozen=True)
class Rollout:
    """The actions of a recorded episode played again in the dream; `dreamed` ends early where the dream did.

    `failed` says that the dream broke off with a fault: that is no outcome, and counted apart.
    """

    real: tuple[Transition, ...]
    dreamed: tuple[Transition, ...]
    failed: bool = False
    instruction: str = ""

    @property
    def agrees(self) -> bool:
        """The same outcome: solved in both worlds, or in neither."""
        return any(t.success for t in self.real) == any(t.success for t in self.dreamed)

    @property
    def exact_steps(self) -> int:
        """Steps before the dream's states first differ from the real ones."""
        pairs = zip(self.real, self.dreamed, strict=False)
        same = [one_line(real.next_state) == one_line(dreamed.next_state) for real, dreamed in pairs]
        return same.index(False) if False in same else len(same)


def measure(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """State accuracy (exact, similarity), success and done F1, invalid-action precision and recall, calibration.

    Malformed predictions count as wrong in every measure, and are also reported apart.
    """
    made = [p for p in predictions if p.predicted is not None]
    exact = [is_exact(p) for p in predictions]
    similarity = [similar(p) for p in predictions]
    done = _f1([(p.real.done, bool(p.predicted and p.predicted.done)) for p in predictions])
    return {
        "n": len(predictions),
        "state_exact": asdict(wilson(sum(exact), len(exact))),
        "state_similarity": sum(similarity) / len(similarity) if similarity else 0.0,
        "success": _f1([(p.real.success, bool(p.predicted and p.predicted.success)) for p in predictions]),
        "success_self_judged": _f1([(p.real.success, p.self_judged) for p in predictions]),
        "done": done,
        "done_f1": done["f1"],
        "invalid_action": _f1(
            # A malformed output counts as the wrong answer, whichever that is.
            [
                (not p.real.valid_action, p.real.valid_action if p.predicted is None else not p.predicted.valid_action)
                for p in predictions
            ]
        ),
        "by_action": _by_action(predictions, exact),
        "by_step": _by_step(predictions, exact),
        "malformed": len(predictions) - len(made),
        "confidence_calibration": _calibration(made),
        "examples": _examples(predictions, exact),
        "tokens": sum(p.tokens for p in predictions),
    }


def is_exact(prediction: Prediction) -> bool:
    """True if the predicted state equals the real one, white space aside."""
    if prediction.predicted is None:
        return False
    return one_line(prediction.predicted.next_state) == one_line(prediction.real.next_state)


def similar(prediction: Prediction) -> float:
    """Ratio of matching words in order, 0 to 1."""
    if prediction.predicted is None:
        return 0.0
    return SequenceMatcher(
        None, prediction.real.next_state.split(), prediction.predicted.next_state.split(), autojunk=False
    ).ratio()


def measure_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Whether sequences of actions have the outcome in the dream that they had in reality.

    `consistency` is the share with the same outcome; `success` and `invalid_action` compare what the dream said with what
    was real, by episode and by step; `exact_steps` is the mean number of steps before the first difference.
    """
    played = [rollout for rollout in rollouts if not rollout.failed]
    steps = [pair for rollout in played for pair in zip(rollout.real, rollout.dreamed, strict=False)]
    return {
        "n": len(played),
        "failed": len(rollouts) - len(played),
        "consistency": asdict(wilson(sum(rollout.agrees for rollout in played), len(played))),
        "success": _f1([(any(t.success for t in r.real), any(t.success for t in r.dreamed)) for r in played]),
        "invalid_action": _f1([(not real.valid_action, not dreamed.valid_action) for real, dreamed in steps]),
        "exact_steps": sum(r.exact_steps for r in played) / len(played) if played else None,
        "mean_steps": sum(len(r.real) for r in played) / len(played) if played else None,
        "differences": [_difference(rollout) for rollout in played if not rollout.agrees][:EXAMPLES],
    }


def _difference(rollout: Rollout) -> dict[str, Any]:
    """Where an episode that ended otherwise in the dream first went another way."""
    place = rollout.exact_steps
    real = rollout.real[place] if place < len(rollout.real) else None
    dreamed = rollout.dreamed[place] if place < len(rollout.dreamed) else None
    return {
        "task": rollout.instruction,
        "solved_in": "reality" if any(t.success for t in rollout.real) else "dream",
        "step": place,
        "action": real.action if real else "",
        "dream": dreamed.next_state if dreamed else "(the dream was over)",
        "real": real.next_state if real else "(the recording was over)",
    }


def _f1(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """Precision, recall and F1 of (truth, prediction) pairs; None where there is nothing to divide by.

    `low` and `high` bound 95 % of the F1 of bootstrap resamples of the pairs (Efron 1979), drawn by a fixed seed.
    """
    hits = sum(truth and said for truth, said in pairs)
    said = sum(prediction for _, prediction in pairs)
    true = sum(truth for truth, _ in pairs)
    precision = hits / said if said else None
    recall = hits / true if true else None
    f1 = _f1_of(hits, said, true)
    rng = random.Random(0)
    resampled = [_f1_of_pairs(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES if f1 is not None else 0)]
    ranked = sorted(value for value in resampled if value is not None)
    low, high = (ranked[len(ranked) * 25 // 1000], ranked[len(ranked) * 975 // 1000]) if ranked else (None, None)
    return {"precision": precision, "recall": recall, "f1": f1, "low": low, "high": high, "n": true}


def _f1_of(hits: int, said: int, true: int) -> float | None:
    return 2 * hits / (said + true) if said + true else None


def _f1_of_pairs(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    return _f1_of(sum(t and s for t, s in pairs), sum(s for _, s in pairs), sum(t for t, _ in pairs))


def _by_action(predictions: Sequence[Prediction], exact: Sequence[bool]) -> dict[str, Any]:
    def kind(prediction: Prediction) -> str:
        words = prediction.real.action.split()
        verb = words[0].lower() if words else "(empty)"
        return verb if prediction.real.valid_action else "(refused)"

    groups = _grouped(predictions, exact, kind)
    return dict(sorted(groups.items(), key=lambda item: -item[1]["n"])[:20])


def _by_step(predictions: Sequence[Prediction], exact: Sequence[bool]) -> dict[str, Any]:
    """Accuracy by the step's index: errors that only late steps show come from the history."""

    def band(prediction: Prediction) -> str:
        return next(name for name, first in reversed(STEP_BANDS.items()) if prediction.step >= first)

    groups = _grouped(predictions, exact, band)
    return {name: groups[name] for name in STEP_BANDS if name in groups}


def _grouped(
    predictions: Sequence[Prediction], exact: Sequence[bool], name: Callable[[Prediction], str]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[bool]] = {}
    for prediction, right in zip(predictions, exact, strict=True):
        groups.setdefault(name(prediction), []).append(right)
    found = {}
    for group, rights in groups.items():
        share = wilson(sum(rights), len(rights))
        found[group] = {"n": share.n, "exact": share.value, "low": share.low, "high": share.high}
    return found


def _calibration(made: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Accuracy by bins of the model's own confidence."""
    bins = []
    for low, high in ((0.0, 0.5), (0.5, 0.8), (0.8, 0.95), (0.95, 1.01)):
        inside = [p for p in made if p.predicted is not None and low <= p.predicted.confidence < high]
        if inside:
            right = sum(is_exact(p) for p in inside) / len(inside)
            bins.append({"confidence": f"{low:g} to {min(high, 1.0):g}", "n": len(inside), "exact": right})
    return bins


def _examples(predictions: Sequence[Prediction], exact: Sequence[bool]) -> list[dict[str, Any]]:
    """What the dream got wrong, one of each kind of action first."""
    wrong = [p for p, right in zip(predictions, exact, strict=True) if not right]
    seen: dict[str, int] = {}

    def order(prediction: Prediction) -> int:
        verb = prediction.real.action.split()[0] if prediction.real.action.split() else ""
        seen[verb] = seen.get(verb, 0) + 1
        return seen[verb]

    ranked = sorted(wrong, key=order)[:EXAMPLES]
    return [
        {
            "task": p.instruction,
            "action": p.real.action,
            "dream": p.predicted.next_state if p.predicted else "(malformed output)",
            "real": p.real.next_state,
            "reasoning": p.predicted.reasoning if p.predicted else "",
        }
        for p in ranked
    ]
