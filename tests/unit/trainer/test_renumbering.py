"""Renumbered episodes are the same episodes with other numbers."""

from __future__ import annotations

import random
import re

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.trainer.renumbering import copies, renumbered

_NUMBER = re.compile(r"\d+")


def _episode() -> Episode:
    steps = (
        Transition("You see a drawer 1, and a drawer 2.", "go to drawer 2", "On the drawer 2, you see a mug 1."),
        Transition("On the drawer 2, you see a mug 1.", "take mug 1 from drawer 2", "You pick up the mug 1."),
    )
    return Episode("e", Task("t", "put a mug in drawer"), Source.SEED, steps, TerminationReason.SUCCESS)


def test_only_numbers_change_and_each_thing_keeps_one_number_throughout() -> None:
    changed = renumbered(_episode(), random.Random(3))
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
    assert renumbered(episode, random.Random(0)) == episode
