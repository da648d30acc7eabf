"""Measures of an experience model on held-out real transitions (METHOD section 3). Pure: predictions in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

from dreamgym.core.episodes import Transition
from dreamgym.core.policy_prompt import one_line
from dreamgym.core.statistics import wilson

EXAMPLES = 12


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


def measure(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """State accuracy (exact, similarity), success and done F1, invalid-action precision and recall, calibration.

    Malformed predictions count as wrong in every measure, and are also reported apart.
    """
    made = [p for p in predictions if p.predicted is not None]
    exact = [is_exact(p) for p in predictions]
    similarity = [similar(p) for p in predictions]
    return {
        "n": len(predictions),
        "state_exact": asdict(wilson(sum(exact), len(exact))),
        "state_similarity": sum(similarity) / len(similarity) if similarity else 0.0,
        "success": _f1([(p.real.success, bool(p.predicted and p.predicted.success)) for p in predictions]),
        "success_self_judged": _f1([(p.real.success, p.self_judged) for p in predictions]),
        "done_f1": _f1([(p.real.done, bool(p.predicted and p.predicted.done)) for p in predictions])["f1"],
        "invalid_action": _f1(
            # A malformed output counts as the wrong answer, whichever that is.
            [
                (not p.real.valid_action, p.real.valid_action if p.predicted is None else not p.predicted.valid_action)
                for p in predictions
            ]
        ),
        "by_action": _by_action(predictions, exact),
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


def _f1(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """Precision, recall and F1 of (truth, prediction) pairs; None where there is nothing to divide by."""
    hits = sum(truth and said for truth, said in pairs)
    said = sum(prediction for _, prediction in pairs)
    true = sum(truth for truth, _ in pairs)
    precision = hits / said if said else None
    recall = hits / true if true else None
    f1 = 2 * hits / (said + true) if said + true else None
    return {"precision": precision, "recall": recall, "f1": f1, "n": true}


def _by_action(predictions: Sequence[Prediction], exact: Sequence[bool]) -> dict[str, Any]:
    groups: dict[str, list[bool]] = {}
    for prediction, right in zip(predictions, exact, strict=True):
        words = prediction.real.action.split()
        verb = words[0].lower() if words else "(empty)"
        kind = verb if prediction.real.valid_action else "(refused)"
        groups.setdefault(kind, []).append(right)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))[:20]
    return {kind: {"n": len(rights), "exact": sum(rights) / len(rights)} for kind, rights in ranked}


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
