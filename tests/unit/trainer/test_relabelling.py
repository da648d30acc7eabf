"""Relabelled episodes are the same episodes with other numbers and names."""

from __future__ import annotations

import random
import re

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.trainer.relabelling import copies, names_of_things, relabelled

_NUMBER = re.compile(r"\d+")


def _episode() -> Episode:
    steps = (
        Transition("You see a drawer 1, and a drawer 2.", "go to drawer 2", "On the drawer 2, you see a mug 1."),
        Transition("On the drawer 2, you see a mug 1.", "take mug 1 from drawer 2", "You pick up the mug 1."),
    )
    return Episode("e", Task("t", "put a mug in drawer"), Source.SEED, steps, TerminationReason.SUCCESS)


def test_only_numbers_change_and_each_thing_keeps_one_number_throughout() -> None:
    changed = relabelled(_episode(), random.Random(3))
    texts = [text for t in changed.transitions for text in (t.state, t.action, t.next_state)]
    original = [text for t in _episode().transitions for text in (t.state, t.action, t.next_state)]
    assert [_NUMBER.sub("#", text) for text in texts] == [_NUMBER.sub("#", text) for text in original]
    assert len(set(re.findall(r"mug \d+", " ".join(texts)))) == 1
    assert len(set(re.findall(r"drawer \d+", " ".join(texts)))) == 2
    assert changed.transitions[0].next_state == changed.transitions[1].state


def test_copies_start_with_the_episode_itself_and_are_stable() -> None:
    first, *others = copies(_episode(), 4, "seed")
    assert first == _episode()
    assert others == copies(_episode(), 4, "seed")[1:]
    assert any(other != first for other in others)


def test_an_episode_without_numbers_is_unchanged() -> None:
    step = Transition("A page.", "click[buy now]", "Thanks.")
    episode = Episode("e", Task("t", "buy it"), Source.SEED, (step,), TerminationReason.SUCCESS)
    assert relabelled(episode, random.Random(0)) == episode


def test_names_change_for_things_alone_and_alike_in_instruction_and_texts() -> None:
    names = ["lamp", "mug", "vase"]
    changed = relabelled(_episode(), random.Random(1), names)
    (new,) = {
        re.sub(r" \d+", "", m) for t in changed.transitions for m in re.findall(r"(?:mug|lamp|vase) \d+", t.action)
    }
    assert changed.task.instruction == f"put a {new} in drawer"
    assert {re.sub(r"\d+", "#", t.action) for t in changed.transitions} == {
        "go to drawer #",
        f"take {new} # from drawer #",
    }
    drawn = {relabelled(_episode(), random.Random(s), names).task.instruction for s in range(20)}
    assert drawn == {f"put a {name} in drawer" for name in names}


def test_two_things_never_get_one_name() -> None:
    step = Transition("A shelf 1.", "look", "You see a mug 1, and a lamp 1, and a cup 1.")
    episode = Episode("e", Task("t", "find a mug"), Source.SEED, (step,), TerminationReason.SUCCESS)
    for seed in range(20):
        text = relabelled(episode, random.Random(seed), ["cup", "lamp", "mug"]).transitions[0].next_state
        assert set(re.findall(r"[a-z]+(?= \d)", text)) == {"cup", "lamp", "mug"}


def test_what_a_first_state_names_is_a_place_and_keeps_its_name() -> None:
    assert names_of_things([_episode()]) == ["mug"]
