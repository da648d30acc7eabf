from __future__ import annotations

from dreamgym.core.consistency import LISTING, RULES, Consistency, TrackedWorld, validated_rules
from dreamgym.core.dream_prompt import Outcome
from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.world_sheet import Sheet, parse

ROOM = "You are in a room. You see a desk 1, a shelf 1, and a shelf 2."
ALL = Consistency(rules=(*RULES, LISTING), verbs=("go", "take", "move", "look", "open"))
SHEET = parse("desk 1: pen 1; shelf 1: book 1, mug 1; shelf 2: nothing")
REFUSALS = ("Nothing happens.",)


def recorded(*actions: tuple[str, str], times: int = 20) -> tuple[list[Episode], list[Sheet]]:
    steps = tuple(Transition("", action, state) for action, state in actions)
    episode = Episode("e", Task("t", "x", ROOM), Source.SEED, steps, TerminationReason.STEP_LIMIT)
    return [episode] * times, [SHEET] * times


def test_an_action_that_contradicts_the_tracked_world_is_refused_with_the_fact() -> None:
    world = TrackedWorld(ROOM, SHEET, ALL, REFUSALS)
    assert world.refuses("take mug 1 from shelf 1") == "not at shelf 1"
    world.follow("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a book 1, and a mug 1.")
    assert world.refuses("take mug 1 from shelf 1") == ""
    assert world.refuses("take pen 1 from shelf 1") == "pen 1 is not here"
    assert world.refuses("move mug 1 to shelf 1") == "not holding mug 1"
    assert world.refuses("take sun 1 from shelf 1") == "no sun 1"
    assert world.refuses("go to shelf 1") == "already at shelf 1"
    assert world.refuses("dance") == "not a command"
    world.follow("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1.")
    assert world.refuses("take book 1 from shelf 1") == "holding mug 1"
    world.follow("take book 1 from shelf 1", "Nothing happens.")
    assert world.refuses("move mug 1 to shelf 1") == ""


def test_a_listing_that_a_model_invented_changes_nothing() -> None:
    world = TrackedWorld(ROOM, SHEET, ALL, REFUSALS)
    invented = "You arrive at shelf 2. On the shelf 2, you see a mug 1."
    assert world.contradicts("go to shelf 2", Outcome("", invented, "continue"))
    assert not world.contradicts("go to shelf 2", Outcome("", "You arrive at shelf 2. You see nothing.", "continue"))
    world.follow("go to shelf 2", invented)
    assert world.refuses("take mug 1 from shelf 2") == "mug 1 is not here"


def test_only_rules_that_never_refused_an_accepted_action_are_kept() -> None:
    arrive = "You arrive at shelf 1. On the shelf 1, you see a book 1, and a mug 1."
    taken = ("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1.")
    strict = validated_rules(*recorded(("go to shelf 1", arrive), taken))
    assert {"reach", "hands", "take", "already", LISTING} <= set(strict.rules)
    assert "put" not in strict.rules  # no chance to be wrong, so not known to be right
    both_hands = validated_rules(*recorded(("go to shelf 1", arrive), taken, ("take book 1 from shelf 1", "Taken.")))
    assert "hands" not in both_hands.rules
    assert "reach" in both_hands.rules
    from_afar = validated_rules(*recorded(taken))
    assert "reach" not in from_afar.rules
    assert validated_rules(*recorded(taken, times=3)) == Consistency()


def test_a_rule_that_fails_for_some_first_words_is_kept_for_the_others() -> None:
    far = "You arrive at shelf 1. On the shelf 1, you see a mug 1."
    near = "You arrive at desk 1. On the desk 1, you see a pen 1."
    steps = [("go to shelf 1", far), ("slice pen 1", "Sliced."), ("go to desk 1", near), ("use pen 1", "Used.")]
    learnt = validated_rules(*recorded(*steps))
    assert "use" in learnt.rules
    assert learnt.exceptions == {"use": ("slice",)}
    world = TrackedWorld(ROOM, SHEET, learnt, REFUSALS)
    world.follow("go to shelf 1", far)
    assert world.refuses("use pen 1") == "pen 1 is not here"
    assert world.refuses("slice pen 1") == ""
    assert "use" not in validated_rules(*recorded(*steps[:2])).rules


def test_without_rules_places_or_a_known_refusal_nothing_is_refused() -> None:
    assert TrackedWorld(ROOM, SHEET, Consistency(), REFUSALS).refuses("take sun 1 from moon 1") == ""
    assert TrackedWorld(ROOM, SHEET, ALL, ()).refuses("take sun 1 from moon 1") == ""
    assert TrackedWorld("[1] link: Home", {}, ALL, REFUSALS).refuses("click [1]") == ""
