"""How faithful a dream must be."""

from __future__ import annotations

import pytest

from dreamgym.core.environment_settings import settings_of
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.fidelity_floor import FidelityFloor, summary_of


def test_a_floor_says_which_number_is_too_low_and_which_is_missing() -> None:
    floor = settings_of(
        {"fidelity_floor": {"state_exact": 0.5, "success_f1": 0.95, "rollout_consistency": 0.8}}
    ).fidelity_floor
    measured = {"state_exact": 0.7, "success_f1": 0.41234, "rollout_consistency": None}
    assert floor.shortfalls(measured) == [
        "success_f1 is 0.412 (floor 0.95)",
        "rollout_consistency was not measured (floor 0.8)",
    ]
    assert len(floor.shortfalls(None)) == 3
    assert floor.shortfalls({"state_exact": 0.5, "success_f1": 0.95, "rollout_consistency": 1.0}) == []


def test_without_a_floor_nothing_is_asked_for() -> None:
    floor = settings_of("").fidelity_floor
    assert (floor, floor.asks, floor.shortfalls(None)) == (FidelityFloor(), False, [])
    assert settings_of('{"fidelity_floor": {"done_f1": 0}}').fidelity_floor.asks


def test_settings_that_an_older_release_took_unread_name_field_and_remedy() -> None:
    with pytest.raises(InvalidInputError, match=r"admission: .*; colour: ") as caught:
        settings_of({"admission": "real_only", "colour": "red"})
    assert "PATCH" in caught.value.remedy


def test_the_summary_of_a_measurement_has_every_number_that_a_floor_may_ask_for() -> None:
    measured = {
        "n": 9,
        "state_exact": {"value": 0.5},
        "success": {"f1": None},
        "done_f1": 0.4,
        "invalid_action": {"recall": 0.3},
        "rollouts": {"n": 2, "consistency": {"value": 1.0}},
    }
    summary = summary_of(measured)
    assert set(FidelityFloor.model_fields) <= summary.keys()
    assert (summary["rollout_consistency"], summary["replayed_episodes"], summary["transitions"]) == (1.0, 2, 9)
    assert summary_of({**measured, "rollouts": {"n": 0}})["rollout_consistency"] is None
