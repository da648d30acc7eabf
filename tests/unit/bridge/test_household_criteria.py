"""Criteria of household games, on transcripts written by hand."""

from __future__ import annotations

import pytest

from dreamgym.bridge.adapters.household_criteria import criterion_for
from dreamgym.bridge.adapters.household_games import TASK_TYPES
from dreamgym.core.criteria import Evidence, is_met, validate_criterion


def met(criterion: dict[str, object], *observations: str) -> bool:
    return is_met(criterion, Evidence([("some action", text) for text in observations]))


PLACE = criterion_for("pick_and_place_simple", thing="Mug", receptacle="Cabinet")
CLEAN = criterion_for("pick_clean_then_place_in_recep", thing="Mug", receptacle="Cabinet")
HEAT = criterion_for("pick_heat_then_place_in_recep", thing="Mug", receptacle="Cabinet")
COOL = criterion_for("pick_cool_then_place_in_recep", thing="Mug", receptacle="Cabinet")
LOOK = criterion_for("look_at_obj_in_light", thing="Book", lamp="DeskLamp")
TWO = criterion_for("pick_two_obj_and_place", thing="Mug", receptacle="Cabinet")

TAKE = "You pick up the mug 1 from the countertop 1."
PUT = "You move the mug 1 to the cabinet 2."
TAKE_OUT = "You pick up the mug 1 from the cabinet 2."
WASH = "You clean the mug 1 using the sinkbasin 1."
WARM = "You heat the mug 1 using the microwave 1."
CHILL = "You cool the mug 1 using the fridge 1."


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_every_task_type_has_a_valid_criterion_that_an_empty_transcript_does_not_meet(task_type: str) -> None:
    criterion = criterion_for(task_type, thing="Mug", receptacle="Cabinet", lamp="DeskLamp")
    validate_criterion(criterion)
    assert not met(criterion)


def test_a_placed_thing_counts_until_it_is_taken_out() -> None:
    assert met(PLACE, TAKE, PUT)
    assert met(PLACE, TAKE, PUT, "You close the cabinet 2.")
    assert not met(PLACE, TAKE, PUT, TAKE_OUT)
    assert met(PLACE, TAKE, PUT, TAKE_OUT, PUT)
    assert not met(PLACE, TAKE, "You move the mug 1 to the countertop 1.")


def test_another_thing_with_a_longer_number_or_name_is_not_mistaken() -> None:
    assert met(PLACE, PUT, "You pick up the mug 11 from the cabinet 2.")
    assert not met(PLACE, "You move the bigmug 1 to the cabinet 2.")


def test_only_the_cleaned_thing_itself_counts() -> None:
    assert met(CLEAN, TAKE, WASH, PUT)
    assert not met(CLEAN, TAKE, PUT)
    assert not met(CLEAN, TAKE, WASH, "You move the mug 1 to the sinkbasin 1.", "You move the mug 2 to the cabinet 2.")
    assert not met(CLEAN, TAKE, PUT, TAKE_OUT, WASH)
    assert met(CLEAN, TAKE, PUT, TAKE_OUT, WASH, "You arrive at cabinet 1.", "You move the mug 1 to the cabinet 1.")


def test_heat_is_lost_by_cooling_and_the_other_way_round() -> None:
    assert met(HEAT, TAKE, WARM, PUT)
    assert not met(HEAT, TAKE, WARM, CHILL, PUT)
    assert met(HEAT, TAKE, WARM, CHILL, WARM, PUT)
    assert met(HEAT, TAKE, WARM, "You cool the mug 2 using the fridge 1.", PUT)
    assert met(COOL, TAKE, CHILL, PUT)
    assert not met(COOL, TAKE, CHILL, WARM, PUT)
    assert met(COOL, TAKE, WARM, CHILL, PUT)


DESK = "You arrive at desk 1. On the desk 1, you see a desklamp 1, and a book 1."
BED = "You arrive at bed 1. On the bed 1, you see a book 2."
LIGHT = "You turn on the desklamp 1."
BOOK = "You pick up the book 2 from the bed 1."


def test_looking_needs_the_thing_in_hand_at_a_lamp_that_was_used_in_either_order() -> None:
    assert met(LOOK, BED, BOOK, DESK, LIGHT)
    assert met(LOOK, DESK, LIGHT, "You pick up the book 1 from the desk 1.")
    assert met(LOOK, DESK, LIGHT, BED, BOOK, DESK)
    assert not met(LOOK, DESK, LIGHT, BED, BOOK)
    assert not met(LOOK, BED, BOOK, DESK)
    assert not met(LOOK, BED, BOOK, "You move the book 2 to the bed 1.", DESK, LIGHT)
    assert not met(LOOK, DESK, LIGHT, "You pick up the pen 1 from the desk 1.")


def test_two_things_must_end_in_the_same_receptacle() -> None:
    second = "You move the mug 2 to the cabinet 2."
    assert met(TWO, TAKE, PUT, second)
    assert not met(TWO, TAKE, PUT, "You move the mug 2 to the cabinet 1.")
    assert not met(TWO, TAKE, PUT, TAKE_OUT, PUT)
    assert not met(TWO, TAKE, PUT, TAKE_OUT, second)
    assert met(TWO, TAKE, PUT, "You open the drawer 1. The drawer 1 is open. In it, you see a mug 2.", second)


@pytest.mark.parametrize(
    "listing",
    [
        "You open the cabinet 2. The cabinet 2 is open. In it, you see a mug 2, and a cup 1.",
        "You arrive at cabinet 2. The cabinet 2 is open. In it, you see a cup 1, and a mug 2.",
        "The cabinet 2 is open. In it, you see a mug 2.",
        "You arrive at cabinet 2. On the cabinet 2, you see a cup 1, a mug 2, and a fork 1.",
    ],
)
def test_one_of_two_may_have_been_seen_in_place_from_the_start(listing: str) -> None:
    assert met(TWO, TAKE, listing, PUT)
    assert not met(TWO, TAKE, listing, "You move the mug 1 to the cabinet 1.")
    assert not met(TWO, listing, "You pick up the mug 2 from the cabinet 2.", PUT)
    assert not met(TWO, TAKE, listing.replace("a mug 2", "a mug 1"), PUT)


def test_the_text_of_an_action_proves_nothing() -> None:
    assert not is_met(PLACE, Evidence([(PUT, "Nothing happens.")]))
    assert not met(PLACE, f"You read: {PUT}")


def test_the_older_wording_of_alfworld_counts_too() -> None:
    assert met(PLACE, TAKE, "You put the mug 1 in/on the cabinet 2.")


def test_a_long_transcript_is_judged_well_within_the_time_limit() -> None:
    walk = [f"You arrive at cabinet {i % 9}. On the cabinet {i % 9}, you see a mug 1, and a mug 2." for i in range(200)]
    moves = [text for _ in range(60) for text in (TAKE, PUT, TAKE_OUT, WASH, LIGHT)]
    for criterion in (PLACE, CLEAN, HEAT, COOL, LOOK, TWO):
        assert not met(criterion, *walk, *moves)
