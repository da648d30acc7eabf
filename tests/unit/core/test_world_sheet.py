from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.core.world_sheet import (
    action_entities,
    class_of,
    entities,
    from_hindsight,
    merge,
    parse,
    render,
    reveals_nothing,
    shuffled,
)

ROOM = "You are in a room. You see a desk 1, a drawer 1, and a shelf 1."
names = st.from_regex(r"[a-z]{2,8} [1-9]", fullmatch=True)
sheets = st.dictionaries(names, st.lists(names, unique=True, max_size=4), max_size=5)


@given(sheet=sheets)
def test_a_sheet_survives_its_text_form(sheet: dict[str, list[str]]) -> None:
    assert parse(render(sheet)) == sheet


@given(sheet=sheets, keep=st.floats(0, 1), seed=st.integers())
def test_shuffling_moves_things_but_neither_makes_nor_loses_any(
    sheet: dict[str, list[str]], keep: float, seed: int
) -> None:
    moved = shuffled(sheet, random.Random(seed), keep=keep)
    assert list(moved) == list(sheet)
    flat = sorted(thing for things in sheet.values() for thing in things)
    assert sorted(thing for things in moved.values() for thing in things) == flat


def test_a_thing_that_fits_nowhere_stays() -> None:
    sheet = {"fridge 1": ["egg 1"], "desk 1": []}
    assert shuffled(sheet, random.Random(0), keep=0.0, fits=lambda thing, place: False) == sheet


def test_a_verb_or_an_adjective_is_not_part_of_a_known_name() -> None:
    assert action_entities("clean cloth 1 with sinkbasin 1") == ["cloth 1", "sinkbasin 1"]
    assert entities("This is a cold apple 1.", {"apple 1"}) == ["apple 1"]
    assert entities("There's nothing special about cd 1.") == ["cd 1"]
    assert entities("You see a dining table 2, and a mug 1.") == ["dining table 2", "mug 1"]
    assert class_of("dining table 2") == "dining table"


def test_hindsight_knows_what_lay_where_before_anything_moved() -> None:
    turns = [
        ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a mug 1, and a pen 1."),
        ("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1."),
        ("examine mug 1", "This is a cold mug 1. In it, you see nothing."),
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing."),
        ("move mug 1 to desk 1", "You move the mug 1 to the desk 1."),
        ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a pen 1."),
        ("go to drawer 9", "Nothing happens."),
    ]
    sheet = from_hindsight(ROOM, turns, [True] * 6 + [False])
    assert sheet == {"desk 1": [], "shelf 1": ["mug 1", "pen 1"]}


def test_nothing_beside_a_closed_place_says_nothing_about_what_it_holds() -> None:
    turns = [
        ("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed."),
        ("look", "You are facing the drawer 1. Next to it, you see nothing."),
        ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a key 1."),
    ]
    assert from_hindsight(ROOM, turns[:2], [True] * 2) == {}
    assert from_hindsight(ROOM, turns, [True] * 3) == {"drawer 1": ["key 1"]}
    assert reveals_nothing("The drawer 1 is open. In it, you see nothing.", "drawer 1")
    assert not reveals_nothing("This is a bowl 1. In it, you see nothing.", "drawer 1")
    assert not reveals_nothing("Nothing happens.")


def test_merging_keeps_the_fullest_listing_of_each_place() -> None:
    merged = merge([{"desk 1": []}, {"desk 1": ["pen 1"], "sofa 1": ["cat 1"]}, {"shelf 1": ["mug 1"]}], entities(ROOM))
    assert merged == {"desk 1": ["pen 1"], "shelf 1": ["mug 1"]}
