"""Which actions the texts of an episode leave open."""

from __future__ import annotations

import time

import pytest

from dreamgym.core.action_choices import (
    ActionChooser,
    ActionRules,
    learn_rules,
    next_tokens,
    parse_forms,
    token_choices,
)
from dreamgym.core.consistency import RULES, Consistency
from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition

FORMAT = (
    "One line, as in the text: go to (receptacle) | open (receptacle) | take (object) from (receptacle) | "
    "move (object) to (receptacle) | use (lamp) | clean (object) with (basin) | inventory"
)
ROOM = "You are in a room. You see a desk 1, a drawer 1, and a basin 1."
RULED = ActionRules(
    action_format=FORMAT,
    consistency=Consistency(rules=tuple(RULES), verbs=()),
    refusals=("Nothing happens.",),
)
MOVES = ["go to basin 1", "go to desk 1", "go to drawer 1"]


def walk(*turns: tuple[str, str]) -> ActionChooser:
    chooser = ActionChooser(RULED, ROOM)
    for action, state in turns:
        chooser.follow(action, state)
    return chooser


AT_DESK = ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1, and a desklamp 1.")


def test_forms_are_read_from_the_format() -> None:
    forms = parse_forms("One line: go to (receptacle) | examine (object or receptacle) | look")
    assert [form.slots for form in forms] == [(("receptacle",),), (("object", "receptacle"),), ()]
    assert forms[0].filled(["desk 1"]) == "go to desk 1"
    assert parse_forms("Say what you do, in one line.") == ()


def test_at_the_start_one_can_only_go_somewhere_or_look_at_oneself() -> None:
    assert walk().choices() == sorted([*MOVES, "inventory"])


def test_what_lies_here_can_be_taken_and_what_lies_elsewhere_cannot() -> None:
    chooser = walk(AT_DESK)
    assert "take pen 1 from desk 1" in chooser.choices()
    assert "go to desk 1" not in chooser.choices()
    chooser.follow("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed.")
    assert [c for c in chooser.choices() if not c.startswith("go")] == ["inventory", "open drawer 1"]


def test_a_held_thing_can_be_put_down_and_used_with_the_tool_that_is_here() -> None:
    chooser = walk(AT_DESK, ("take pen 1 from desk 1", "You pick up the pen 1 from the desk 1."))
    assert "move pen 1 to desk 1" in chooser.choices()
    assert not [c for c in chooser.choices() if c.startswith(("take", "clean"))]
    chooser.follow("go to basin 1", "You arrive at basin 1. On the basin 1, you see nothing.")
    assert "clean pen 1 with basin 1" in chooser.choices()


def test_a_slot_may_name_a_class_by_its_ending() -> None:
    assert [c for c in walk(AT_DESK).choices() if c.startswith("use")] == ["use desklamp 1"]


def test_a_refused_action_is_not_offered_again_until_another_is_accepted() -> None:
    before = walk(AT_DESK).choices()
    refused = ("take pen 1 from desk 1", "Nothing happens.")
    assert refused[0] in before
    assert walk(AT_DESK, refused).choices() == [action for action in before if action != refused[0]]
    assert walk(AT_DESK, refused, ("inventory", "You are not carrying anything.")).choices() == before


def test_nothing_is_offered_where_no_place_is_known_or_the_list_grows_too_long() -> None:
    assert ActionChooser(RULED, "A dark room.").choices() == []
    crowd = ", ".join(f"a shelf {n}" for n in range(300))
    assert ActionChooser(RULED, f"You see {crowd}.").choices() == []
    unruled = RULED.model_copy(update={"consistency": Consistency(rules=("place",), verbs=())})
    chooser = ActionChooser(unruled, "You see a shelf 1.")
    chooser.follow("go to shelf 1", "On the shelf 1, you see " + ", ".join(f"a basin {n}" for n in range(5000)))
    started = time.monotonic()
    assert chooser.choices() == []
    assert time.monotonic() - started < 1, "combinations that nobody would list are not tried one by one"


def seed(times: int, *turns: tuple[str, str, bool]) -> list[Episode]:
    steps = tuple(Transition("", action, state, valid_action=valid) for action, state, valid in turns)
    return [Episode("e", Task("t", "x", ROOM), Source.SEED, steps, TerminationReason.STEP_LIMIT)] * times


def test_rules_are_learnt_from_seeds_and_only_those_that_no_accepted_action_contradicts() -> None:
    arrive = ("go to desk 1", AT_DESK[1], True)
    again = ("go to desk 1", AT_DESK[1], True)  # this environment lets one go where one is
    take = ("take pen 1 from desk 1", "You pick up the pen 1 from the desk 1.", True)
    rules = learn_rules(FORMAT, seed(30, arrive, again, take, ("fly", "Nothing happens.", False)), ["Nothing happens."])
    assert rules is not None
    assert "already" not in rules.consistency.rules
    assert {"place", "reach", "hands", "take"} <= set(rules.consistency.rules)
    assert ActionRules.model_validate(rules.model_dump(mode="json")) == rules


@pytest.mark.parametrize(
    ("form", "times", "refusals"),
    [("Say what you do.", 30, ["Nothing happens."]), (FORMAT, 30, []), (FORMAT, 2, ["Nothing happens."])],
)
def test_without_forms_refusals_or_enough_seeds_there_is_no_choosing(
    form: str, times: int, refusals: list[str]
) -> None:
    assert learn_rules(form, seed(times, ("go to desk 1", AT_DESK[1], True)), refusals) is None


def test_tokens_go_on_only_as_a_choice_does() -> None:
    choices = token_choices(["go a", "go b", "look"], lambda text: list(f"{text}\n".encode()))
    assert next_tokens(choices, []) == tuple(sorted(b"gl"))
    assert next_tokens(choices, list(b"go ")) == tuple(b"ab")
    assert next_tokens(choices, list(b"l")) == tuple(b"o")
    assert next_tokens(choices, list(b"look\n")) == ()
