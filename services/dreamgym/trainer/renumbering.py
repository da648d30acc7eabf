"""Other numbers for the same things: `mug 1` becomes `mug 4` throughout an episode.

Small models memorise names where they should copy them. Numbers carry no meaning of their own in worlds that number their
entities, so giving an episode's entities other numbers yields another episode of the same world, and copying is what is left
to learn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from dreamgym.core.episodes import Episode, Transition

LARGEST = 6
"""Numbers are drawn from 1 to this (or to the largest that the episode uses)."""
_ENTITY = re.compile(r"\b([A-Za-z][A-Za-z_-]*) (\d{1,2})\b")


def renumbering(texts: Iterable[str], rng: random.Random) -> Callable[[str], str]:
    """A function that gives the entities of `texts` other numbers, each class's own permuted; other words stay."""
    used: dict[str, set[int]] = {}
    for text in texts:
        for name, number in _ENTITY.findall(text):
            used.setdefault(name.lower(), set()).add(int(number))
    numbers: dict[tuple[str, int], int] = {}
    for name in sorted(used):
        pool = list(range(1, max(LARGEST, *used[name]) + 1))
        for old, new in zip(sorted(used[name]), rng.sample(pool, len(used[name])), strict=True):
            numbers[name, old] = new

    def changed(text: str) -> str:
        return _ENTITY.sub(
            lambda m: f"{m.group(1)} {numbers.get((m.group(1).lower(), int(m.group(2))), m.group(2))}", text
        )

    return changed


def texts_of(episode: Episode) -> list[str]:
    """Everything that an episode's environment and agent wrote."""
    return [text for t in episode.transitions for text in (t.state, t.action, t.next_state)]


def renumbered(episode: Episode, rng: random.Random) -> Episode:
    """The episode with other numbers; one without `word number` pairs comes back unchanged."""
    return with_texts(episode, renumbering(texts_of(episode), rng))


def with_texts(episode: Episode, changed: Callable[[str], str]) -> Episode:
    """The episode with every text of its transitions passed through `changed`."""

    def moved(t: Transition) -> Transition:
        return replace(t, state=changed(t.state), action=changed(t.action), next_state=changed(t.next_state))

    return replace(episode, transitions=tuple(moved(t) for t in episode.transitions))


def copies(episode: Episode, count: int, seed: str) -> list[Episode]:
    """The episode itself and `count - 1` renumbered ones."""
    others = [renumbered(episode, random.Random(f"{seed}:{episode.id}:{copy}")) for copy in range(1, count)]
    return [episode, *others]
