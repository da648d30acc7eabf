from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.core.episodes import Task
from dreamgym.core.world_sheet import class_of
from dreamgym.experience.cards import World
from dreamgym.experience.worlds import WorldBook, listing_order, named_classes, required_things

ROOM = "You are in a room. You see a desk 1, a shelf 1, and a shelf 2."


def test_places_that_the_sheet_does_not_know_are_filled_from_places_of_their_class(worlds: list[World]) -> None:
    task = Task("new", "put a book on desk", "You see a desk 1, a shelf 1, a shelf 2, and a shelf 3.")
    world = WorldBook(worlds).world_for(task, 5, 0.6)
    assert set(world.sheet) == {"desk 1", "shelf 1", "shelf 2", "shelf 3"}
    things = [thing for listed in world.sheet.values() for thing in listed]
    assert len(things) == len(set(things))


@given(seed=st.integers(0, 10_000), keep=st.floats(0, 1))
def test_what_the_instruction_asks_for_exists_in_every_world(seed: int, keep: float) -> None:
    sheet = {"desk 1": ["pen 1"], "shelf 1": ["book 1"], "shelf 2": []}
    other = {"desk 1": ["pen 1"], "shelf 1": ["mug 1"], "shelf 2": []}
    book = WorldBook([World("a", "put a book on desk", ROOM, sheet), World("b", "put a mug on desk", ROOM, other)])
    world = book.world_for(Task("a", "put two mugs on desk", ROOM), seed, keep)
    mugs = [place for place, things in world.sheet.items() for thing in things if class_of(thing) == "mug"]
    assert len(mugs) >= 2


def test_a_fixed_world_stays_as_recorded_whatever_the_seed(worlds: list[World]) -> None:
    fixed = World("pinned", "put a mug on desk", ROOM, {"desk 1": [], "shelf 1": ["mug 1"], "shelf 2": []}, fixed=True)
    book = WorldBook([*worlds, fixed])
    assert all(book.world_for(Task("pinned", "put a mug on desk", ROOM), s, 0.0).sheet == fixed.sheet for s in range(9))
    by_metadata = Task("mug-on-desk", "put a mug on desk", ROOM, metadata={"world": {"fixed": True}})
    assert {str(book.world_for(by_metadata, seed, 0.0).sheet) for seed in range(9)} == {
        "{'desk 1': ['pen 1'], 'shelf 1': ['book 1', 'mug 1'], 'shelf 2': []}"
    }


def test_a_generated_task_plays_in_the_world_that_it_names(worlds: list[World]) -> None:
    task = Task("generated-1", "put a vase on shelf", "", metadata={"world": {"task_id": "pen-on-shelf"}})
    assert WorldBook(worlds).world_for(task, 0, 0.6).recorded_task_id == "pen-on-shelf"


def test_things_move_only_to_places_of_a_class_that_held_them_somewhere(worlds: list[World]) -> None:
    book = WorldBook(worlds)
    for seed in range(1, 30):
        sheet = book.world_for(Task("cup-on-table", "put a cup on table"), seed, 0.0).sheet
        assert "egg 1" in sheet["fridge 1"]


def test_a_varied_world_is_listed_in_the_order_of_the_recorded_ones() -> None:
    key = listing_order([["cup 2", "cup 1", "egg 1"], ["apple 1", "cup 1"]])
    assert key is not None
    assert sorted(["cup 1", "apple 1", "cup 3"], key=key) == ["apple 1", "cup 3", "cup 1"]
    assert listing_order([["b 1", "a 1"], ["a 1", "b 1"]]) is None


def test_numbers_before_a_class_say_how_many_are_needed() -> None:
    assert required_things("put two mugs and a soap bar on the desk", {"mug", "soap bar", "egg"}) == {
        "mug": 2,
        "soap bar": 1,
    }
    assert named_classes("examine the desklamp", {"desk", "lamp", "desklamp"}) == ["desklamp"]
