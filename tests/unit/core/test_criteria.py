from __future__ import annotations

import time
from typing import Any

import pytest

from dreamgym.core.criteria import MATCH_TIMEOUT_S, Evidence, is_met, validate_criterion
from dreamgym.core.errors import InvalidInputError

PUT = {
    "regex": {"over": "transcript", "pattern": r"(?m)^You take the (?P<o>mug \d+)\.$.*^You put the (?P=o) on the desk"}
}
PRICE = {"over": "state", "pattern": r"price: ([\d,.]+)", "op": "<=", "value": 40}


def evidence(*turns: tuple[str, str]) -> Evidence:
    return Evidence(turns)


@pytest.mark.parametrize(
    ("criterion", "met"),
    [
        ({"contains": {"over": "state", "text": "LAMP is on"}}, True),
        ({"contains": {"over": "action", "text": "lamp is on"}}, False),
        ({"contains": {"over": "action", "text": "use lamp"}}, True),
        ({"contains": {"over": "transcript", "text": "> look\nA room."}}, True),
        ({"regex": {"over": "state", "pattern": r"lamp \d+ is on"}}, False),
        ({"regex": {"over": "state", "pattern": r"lamp is (on|lit)"}}, True),
        ({"not": {"contains": {"over": "state", "text": "off"}}}, True),
        (
            {"all": [{"contains": {"over": "state", "text": "lamp"}}, {"contains": {"over": "state", "text": "x"}}]},
            False,
        ),
        (
            {"any": [{"contains": {"over": "state", "text": "lamp"}}, {"contains": {"over": "state", "text": "x"}}]},
            True,
        ),
    ],
)
def test_each_operator_looks_where_it_is_told(criterion: dict[str, Any], met: bool) -> None:
    validate_criterion(criterion)
    assert is_met(criterion, evidence(("look", "A room."), ("use lamp", "The lamp is on."))) is met


def test_state_and_action_mean_the_newest_ones() -> None:
    turns = evidence(("use lamp", "The lamp is on."), ("use lamp", "The lamp is off."))
    assert not is_met({"contains": {"over": "state", "text": "is on"}}, turns)
    assert is_met({"contains": {"over": "transcript", "text": "is on"}}, turns)


def test_before_the_first_turn_nothing_is_met() -> None:
    for place in ("state", "action", "transcript"):
        assert not is_met({"regex": {"over": place, "pattern": "."}}, evidence())


def test_a_back_reference_ties_two_mentions_to_one_thing() -> None:
    validate_criterion(PUT)
    taken = ("take", "You take the mug 1.")
    assert is_met(PUT, evidence(taken, ("put", "You put the mug 1 on the desk 2.")))
    assert not is_met(PUT, evidence(taken, ("put", "You put the mug 2 on the desk 2.")))


@pytest.mark.parametrize(
    ("op", "value", "met"),
    [("<", 40, False), ("<=", 40, True), ("==", 40, True), (">=", 40.0, True), (">", 39.5, True), (">", 40, False)],
)
def test_a_number_is_compared(op: str, value: float, met: bool) -> None:
    assert is_met({"number": {**PRICE, "op": op, "value": value}}, evidence(("buy", "price: 40"))) is met


def test_a_number_may_have_thousands_and_what_is_no_number_is_not_met() -> None:
    criterion = {"number": {**PRICE, "op": "==", "value": 1234.5}}
    assert is_met(criterion, evidence(("buy", "price: 1,234.5")))
    assert not is_met(criterion, evidence(("buy", "price: 1.2.3")))
    assert not is_met(criterion, evidence(("buy", "sold out")))


def test_a_catastrophic_pattern_ends_in_time_and_is_the_criterions_fault() -> None:
    criterion = {"regex": {"over": "state", "pattern": r"(a|aa|b?a)+(?=c)$"}}
    validate_criterion(criterion)
    started = time.process_time()
    with pytest.raises(InvalidInputError, match=r"took longer") as caught:
        is_met(criterion, evidence(("wait", "a" * 5000 + "b")))
    assert time.process_time() - started < 20 * MATCH_TIMEOUT_S
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("criterion", "path"),
    [
        ([], r"^criterion must be an object"),
        ({}, r"^criterion must be an object"),
        ({"all": [], "any": []}, r"exactly one operator"),
        ({"all": []}, r"^criterion\.all must be a list"),
        ({"any": "abc"}, r"^criterion\.any must be a list"),
        ({"xor": []}, r"^criterion: unknown operator 'xor'"),
        ({"all": [PUT, {"not": {"xor": 1}}]}, r"^criterion\.all\[1\]\.not: unknown operator"),
        ({"not": {"contains": {"over": "state"}}}, r"^criterion\.not\.contains must have exactly the fields"),
        ({"contains": {"over": "world", "text": "x"}}, r"^criterion\.contains\.over is 'world'"),
        ({"contains": {"over": "state", "text": ""}}, r"^criterion\.contains\.text"),
        ({"any": [{"regex": {"over": "state", "pattern": "("}}]}, r"^criterion\.any\[0\]\.regex\.pattern is not"),
        ({"regex": {"over": "state", "pattern": "a" * 2001}}, r"^criterion\.regex\.pattern must be text of at most"),
        ({"number": {**PRICE, "pattern": r"\d+"}}, r"^criterion\.number\.pattern needs a group"),
        ({"number": {**PRICE, "op": "!="}}, r"^criterion\.number\.op is '!='"),
        ({"number": {**PRICE, "value": True}}, r"^criterion\.number\.value must be a number"),
        ({"number": {**PRICE, "value": "40"}}, r"^criterion\.number\.value must be a number"),
    ],
)
def test_a_fault_is_named_by_its_path(criterion: Any, path: str) -> None:
    with pytest.raises(InvalidInputError, match=path):
        validate_criterion(criterion)


@pytest.mark.parametrize(
    "leaf",
    [
        {"contains": {"over": ["state"], "text": "x"}},
        {"number": {**PRICE, "op": ["<"]}},
        {"number": {**PRICE, "value": float("nan")}},
        {"number": {**PRICE, "value": 10**400}},
    ],
)
def test_values_of_the_wrong_shape_are_refused_like_any_other_fault(leaf: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^criterion\."):
        validate_criterion(leaf)


def test_a_criterion_has_a_largest_depth_and_size() -> None:
    deep: dict[str, Any] = {"contains": {"over": "state", "text": "x"}}
    for _ in range(9):
        deep = {"not": deep}
    wide = {"all": [{"contains": {"over": "state", "text": "x"}}] * 64}
    for criterion in (deep, wide):
        with pytest.raises(InvalidInputError, match="more than 64 parts or 8 levels"):
            validate_criterion(criterion, field="tasks[3].criterion")
