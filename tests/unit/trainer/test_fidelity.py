from __future__ import annotations

from typing import Any

import pytest

from dreamgym.core.episodes import Transition
from dreamgym.trainer.fidelity import Prediction, is_exact, measure, similar


def step(state: str, action: str = "look", *, confidence: float = 0.9, **flags: Any) -> Transition:
    return Transition("s", action, state, confidence=confidence, **flags)


PREDICTIONS = [
    Prediction("t", step("You see a cat."), step("You  see a cat.\n"), tokens=10),
    Prediction("t", step("You see a cat."), step("You see a dog.", confidence=0.4), tokens=10),
    Prediction("t", step("You win.", "open", success=True, done=True), step("You win.", success=True, done=True), True),
    Prediction("t", step("You win.", "open", success=True, done=True), step("Closed."), True),
    Prediction("t", step("Nothing.", "fly", valid_action=False), step("Nothing.", valid_action=False)),
    Prediction("t", step("Nothing.", "fly", valid_action=False), step("You fly.", success=True, done=True)),
    Prediction("t", step("A room."), None),
    Prediction("t", step("Nothing.", "fly", valid_action=False), None),
]


def test_known_values() -> None:
    found = measure(PREDICTIONS)
    assert found["n"] == 8
    assert found["malformed"] == 2
    assert found["tokens"] == 20
    assert found["state_exact"]["value"] == 3 / 8
    # 1, 3/4 words, 1, 0, 1, 0 and twice nothing.
    assert found["state_similarity"] == pytest.approx(3.75 / 8)
    assert found["success"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "n": 2}
    assert found["success_self_judged"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "n": 2}
    assert found["done_f1"] == 0.5


def test_a_malformed_output_is_never_right() -> None:
    """Of the refused actions one is found, one missed and one malformed; a malformed output cries wolf once more."""
    assert measure(PREDICTIONS)["invalid_action"] == {"precision": 0.5, "recall": 1 / 3, "f1": 0.4, "n": 3}
    for real in (step("A."), step("A.", valid_action=False), step("A.", success=True, done=True)):
        found = measure([Prediction("t", real, None)])
        assert found["state_exact"]["value"] == found["state_similarity"] == 0
        assert not found["invalid_action"]["f1"]
        assert not found["success"]["f1"]


def test_without_predictions_there_is_no_accuracy_and_no_crash() -> None:
    found = measure([])
    assert (found["n"], found["state_exact"]["n"], found["success"]["f1"]) == (0, 0, None)
    assert found["examples"] == found["confidence_calibration"] == []


def test_where_nothing_succeeded_and_nothing_was_said_to_the_f1_is_unknown() -> None:
    assert measure([Prediction("t", step("A."), step("A."))])["success"]["f1"] is None


def test_only_white_space_is_forgiven() -> None:
    assert is_exact(Prediction("t", step("a  b\n"), step("a b")))
    assert not is_exact(Prediction("t", step("a b"), step("A b")))
    assert similar(Prediction("t", step("a b c d"), step("a b"))) == pytest.approx(2 / 3)


def test_calibration_and_kinds_of_action_count_every_prediction() -> None:
    found = measure(PREDICTIONS)
    assert sum(row["n"] for row in found["confidence_calibration"]) == 6
    assert {row["confidence"]: row["exact"] for row in found["confidence_calibration"]}["0 to 0.5"] == 0
    assert found["by_action"]["(refused)"] == {"n": 3, "exact": 1 / 3}
    assert sum(row["n"] for row in found["by_action"].values()) == 8
    assert found["by_action"]["open"]["exact"] == 0.5


def test_examples_show_one_fault_of_each_kind_first() -> None:
    found = measure(PREDICTIONS)
    assert [example["action"] for example in found["examples"]] == ["look", "open", "fly", "look", "fly"]
    assert found["examples"][3]["dream"] == "(malformed output)"
