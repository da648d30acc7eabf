"""The private world sheet: the hidden facts of an episode's world that its task may touch (METHOD section 3).

A sheet is an ordered mapping from a place (or any entity) to the entities that it holds at the start of the episode.
Its text form is `{place}: {thing}, {thing}; {place}: nothing`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence

NOTHING = "nothing"
_ENTITY = re.compile(r"\b([a-z][a-z_-]*(?: [a-z_-]+)?? \d+)\b", re.IGNORECASE)
_STOP_WORDS = frozenset({"a", "an", "the", "and", "or", "to", "from", "with", "at", "in", "on", "of", "is", "using"})

Sheet = dict[str, list[str]]


def entities(text: str) -> list[str]:
    """Entities (`mug 1`, `sinkbasin 2`) in the order in which a text first names them."""
    found: dict[str, None] = {}
    for match in _ENTITY.finditer(text):
        words = match.group(1).lower().split()
        while words[0] in _STOP_WORDS and len(words) > 2:
            words = words[1:]
        if words[0] not in _STOP_WORDS:
            found[" ".join(words)] = None
    return list(found)


def from_hindsight(initial_state: str, turns: Sequence[tuple[str, str]], valid: Sequence[bool]) -> Sheet:
    """What a recorded episode reveals: entities that an accepted action brings to sight for the first time.

    They belong to the place that the action names first among the places known from the initial state; a place that
    was looked into and showed nothing new, with its contents listed as seen, is recorded as holding nothing.
    """
    places = entities(initial_state)
    seen: set[str] = set(places)
    moved: set[str] = set()
    sheet: Sheet = {}
    here = ""
    for (action, state), accepted in zip(turns, valid, strict=True):
        if not accepted:
            continue
        named = [entity for entity in entities(action) if entity in places]
        here = named[-1] if named else here
        if not here:
            continue
        contents = [entity for entity in entities(state) if entity not in places]
        new = [entity for entity in contents if entity not in seen]
        if new and here not in sheet:
            sheet[here] = new
        elif here not in sheet and reveals_nothing(state):
            sheet[here] = []
        seen.update(new)
        moved.update(contents)
    return {place: sheet[place] for place in places if place in sheet}


def reveals_nothing(state: str) -> bool:
    """True if a state says that a place holds nothing (and not merely that an action had no effect)."""
    lowered = state.lower()
    return any(phrase in lowered for phrase in ("see nothing", "is empty", "contains nothing", "nothing here"))


def merge(sheets: Iterable[Mapping[str, Sequence[str]]], places: Sequence[str]) -> Sheet:
    """Union of what several episodes of the same world reveal, in the order of its places."""
    merged: Sheet = {}
    for sheet in sheets:
        for place, things in sheet.items():
            if len(things) > len(merged.get(place, ())) or place not in merged:
                merged[place] = list(things)
    return {place: merged[place] for place in places if place in merged}


def render(sheet: Mapping[str, Sequence[str]]) -> str:
    """Text form, read by the experience model."""
    return "; ".join(f"{place}: {', '.join(things) if things else NOTHING}" for place, things in sheet.items())


def parse(text: str) -> Sheet:
    """Inverse of `render`; parts that do not read as `place: things` are left out."""
    sheet: Sheet = {}
    for part in text.split(";"):
        place, colon, things = part.partition(":")
        if colon and place.strip():
            listed = [thing.strip() for thing in things.split(",")]
            sheet[place.strip()] = [thing for thing in listed if thing and thing != NOTHING]
    return sheet


def shuffled(sheet: Mapping[str, Sequence[str]], rng: random.Random, *, keep: float = 0.5) -> Sheet:
    """Another world with the same places and things: each thing moves to a random place with probability 1 - keep."""
    places = list(sheet)
    if len(places) < 2:
        return {place: list(things) for place, things in sheet.items()}
    result: Sheet = {place: [] for place in places}
    for place, things in sheet.items():
        for thing in things:
            result[place if rng.random() < keep else rng.choice(places)].append(thing)
    return result
