from __future__ import annotations

from typing import Any

import pytest

from dreamgym.core.episodes import Transition
from dreamgym.trainer.fidelity import Prediction, Rollout, is_exact, measure, measure_rollouts, similar


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


def without_bounds(f1: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in f1.items() if name not in ("low", "high")}


def test_known_values() -> None:
    found = measure(PREDICTIONS)
    assert found["n"] == 8
    assert found["malformed"] == 2
    assert found["tokens"] == 20
    assert found["state_exact"]["value"] == 3 / 8
    # 1, 3/4 words, 1, 0, 1, 0 and twice nothing.
    assert found["state_similarity"] == pytest.approx(3.75 / 8)
    assert without_bounds(found["success"]) == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "n": 2}
    assert without_bounds(found["success_self_judged"]) == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "n": 2}
    assert found["done_f1"] == 0.5


def test_a_malformed_output_is_never_right() -> None:
    """Of the refused actions one is found, one missed and one malformed; a malformed output cries wolf once more."""
    refusals = without_bounds(measure(PREDICTIONS)["invalid_action"])
    assert refusals == {"precision": 0.5, "recall": 1 / 3, "f1": 0.4, "n": 3}
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
    refused = found["by_action"]["(refused)"]
    assert (refused["n"], refused["exact"]) == (3, 1 / 3)
    assert refused["low"] < 1 / 3 < refused["high"]
    assert sum(row["n"] for row in found["by_action"].values()) == 8
    assert found["by_action"]["open"]["exact"] == 0.5


def test_examples_show_one_fault_of_each_kind_first() -> None:
    found = measure(PREDICTIONS)
    assert [example["action"] for example in found["examples"]] == ["look", "open", "fly", "look", "fly"]
    assert found["examples"][3]["dream"] == "(malformed output)"


def test_accuracy_by_step_index_tells_late_errors_from_early_ones() -> None:
    found = measure(
        [
            Prediction("t", step("a"), step("a" if index < 6 else "b"), step=index)
            for index in (0, 2, 3, 5, 6, 9, 10, 40)
        ]
    )
    shares = {band: (row["n"], row["exact"]) for band, row in found["by_step"].items()}
    assert shares == {"0 to 2": (2, 1.0), "3 to 5": (2, 1.0), "6 to 9": (2, 0.0), "from 10": (2, 0.0)}


def test_the_interval_of_an_f1_narrows_with_more_steps_and_is_the_same_each_time() -> None:
    few, many = measure(PREDICTIONS)["success"], measure(PREDICTIONS * 25)["success"]
    assert few["low"] <= few["f1"] <= few["high"]
    assert many["high"] - many["low"] < few["high"] - few["low"]
    assert measure(PREDICTIONS)["success"] == few


WON = step("You win.", success=True, done=True)


@pytest.mark.parametrize(
    ("real", "dreamed", "agrees", "exact_steps"),
    [
        ((step("a"), WON), (step("a"), WON), True, 2),
        ((step("a"), WON), (step("a"), step("Nothing.")), False, 1),
        ((step("a"), step("b")), (step("x"), WON), False, 0),
        ((step("a"), step("b")), (step("x"), step("b")), True, 0),
        ((step("a"), WON), (WON,), True, 0),
    ],
)
def test_a_rollout_agrees_if_it_is_solved_in_both_worlds_or_in_neither(
    real: tuple[Transition, ...], dreamed: tuple[Transition, ...], agrees: bool, exact_steps: int
) -> None:
    rollout = Rollout(real, dreamed)
    assert (rollout.agrees, rollout.exact_steps) == (agrees, exact_steps)


def test_a_rollout_that_broke_off_is_counted_apart() -> None:
    real = (step("a"), step("b", valid_action=False))
    found = measure_rollouts(
        [
            Rollout(real, (step("a"), step("b", valid_action=False))),
            Rollout(real, (step("a"), WON)),
            Rollout(real, (), failed=True),
        ]
    )
    assert (found["n"], found["failed"], found["consistency"]["value"]) == (2, 1, 0.5)
    assert (found["success"]["precision"], found["invalid_action"]["recall"]) == (0.0, 0.5)
    assert (found["exact_steps"], found["mean_steps"]) == (1.5, 2.0)
    (difference,) = found["differences"]
    assert (difference["solved_in"], difference["step"], difference["real"]) == ("dream", 1, "b")
    nothing = measure_rollouts([])
    assert (nothing["n"], nothing["exact_steps"], nothing["success"]["f1"]) == (0, None, None)
