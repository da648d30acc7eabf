"""Other labels for the same things: `mug 1` becomes `mug 4`, or `vase 4`, throughout an episode.

Small models memorise names where they should copy them. Numbers carry no meaning of their own in worlds that number their
entities, and what a thing is called matters little to how it is found and carried. So an episode with other numbers is another
episode of the same world, one with other names an episode of a world like it, and copying is what is left to learn.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
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


def renaming(texts: Iterable[str], names: Sequence[str], rng: random.Random) -> Callable[[str], str]:
    """A function that calls those of `names` which occur in `texts` by others of them, one for one."""
    words = set(re.findall(r"[A-Za-z][A-Za-z_-]*", " ".join(texts)))
    mine = [name for name in names if name in words]
    if not mine:
        return lambda text: text
    others = dict(zip(mine, rng.sample(list(names), len(mine)), strict=True))
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, mine)) + r")\b")
    return lambda text: pattern.sub(lambda m: others[m.group(1)], text)


def names_of_things(episodes: Iterable[Episode]) -> list[str]:
    """Names that may stand for one another, sorted: of numbered entities that no first state names.

    What a first state names are the places of the world; what is found in them can bear another name.
    """
    places: set[str] = set()
    found: set[str] = set()
    for episode in episodes:
        if episode.transitions:
            places.update(name for name, _ in _ENTITY.findall(episode.transitions[0].state))
        found.update(name for t in episode.transitions for name, _ in _ENTITY.findall(t.next_state))
    return sorted(found - places)


def texts_of(episode: Episode) -> list[str]:
    """Everything that an episode's environment and agent wrote."""
    return [text for t in episode.transitions for text in (t.state, t.action, t.next_state)]


def with_texts(episode: Episode, changed: Callable[[str], str]) -> Episode:
    """The episode with its instruction and every text of its transitions passed through `changed`."""

    def moved(t: Transition) -> Transition:
        return replace(t, state=changed(t.state), action=changed(t.action), next_state=changed(t.next_state))

    task = replace(episode.task, instruction=changed(episode.task.instruction))
    return replace(episode, task=task, transitions=tuple(moved(t) for t in episode.transitions))


def relabelled(episode: Episode, rng: random.Random, names: Sequence[str] = ()) -> Episode:
    """The episode with other numbers, and with other ones of `names`; without numbers and names it comes back unchanged."""
    texts = texts_of(episode)
    numbered, named = renumbering(texts, rng), renaming([*texts, episode.task.instruction], names, rng)
    return with_texts(episode, lambda text: named(numbered(text)))


def copies(episode: Episode, count: int, seed: str, names: Sequence[str] = ()) -> list[Episode]:
    """The episode itself and `count - 1` relabelled ones."""
    return [
        episode,
        *(relabelled(episode, random.Random(f"{seed}:{episode.id}:{copy}"), names) for copy in range(1, count)),
    ]
