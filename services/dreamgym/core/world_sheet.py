"""The private world sheet: the hidden facts of an episode's world that its task may touch (METHOD section 3).

A sheet is an ordered mapping from a place (or any entity) to the entities that it holds at the start of the episode.
Its text form is `{place}: {thing}, {thing}; {place}: nothing`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

NOTHING = "nothing"
_ENTITY = re.compile(r"\b([a-z][a-z_-]*(?: [a-z_-]+)?? \d+)\b", re.IGNORECASE)
_STOP_WORDS = frozenset(
    {"a", "an", "the", "and", "or", "to", "from", "with", "at", "in", "on", "of", "is", "are", "was", "using", "about"}
    | {"into", "onto", "inside", "under", "over", "near", "by", "for", "this", "that"}
)
# "You see nothing" says that a place is empty only if the sentence is about what the place holds.
_EMPTY = re.compile(r"see nothing|is empty|(?:contains|holds|has) nothing|nothing (?:is )?(?:here|in it|on it|inside)")
_BESIDE = re.compile(r"\b(?:next to|beside|near|around)\b")

Sheet = dict[str, list[str]]


def entities(text: str, known: Collection[str] = ()) -> list[str]:
    """Entities (`mug 1`, `dining table 2`) in the order in which a text first names them.

    `known` settles where a name starts: with `mug 1` known, `clean mug 1` names `mug 1`.
    """
    found: dict[str, None] = {}
    for match in _ENTITY.finditer(text):
        words = match.group(1).lower().split()
        while words[0] in _STOP_WORDS and len(words) > 2:
            words = words[1:]
        if len(words) > 2 and " ".join(words) not in known and " ".join(words[1:]) in known:
            words = words[1:]
        if words[0] not in _STOP_WORDS:
            found[" ".join(words)] = None
    return list(found)


def action_entities(action: str, known: Collection[str] = ()) -> list[str]:
    """Entities that an action names. Its first word is a verb and never part of a name."""
    return entities(action.strip().partition(" ")[2], known)


def class_of(entity: str) -> str:
    """`mug` of `mug 2`."""
    name, _, number = entity.rpartition(" ")
    return name if name and number.isdigit() else entity


def from_hindsight(initial_state: str, turns: Sequence[tuple[str, str]], valid: Sequence[bool]) -> Sheet:
    """What a recorded episode reveals: entities that an accepted action brings to sight for the first time.

    They belong to the place that the action names last among the places known from the initial state, else to the place
    where the agent is. A place that was looked into and showed nothing is recorded as holding nothing, until something
    that was never seen before shows up there.
    """
    places = entities(initial_state)
    seen: set[str] = set(places)
    sheet: Sheet = {}
    here = ""
    for (action, state), accepted in zip(turns, valid, strict=True):
        if not accepted:
            continue
        named = [entity for entity in action_entities(action, seen) if entity in places]
        here = named[-1] if named else here
        if not here:
            continue
        new = [entity for entity in entities(state, seen) if entity not in seen]
        if new and not sheet.get(here):
            sheet[here] = new
        elif here not in sheet and reveals_nothing(state, here):
            sheet[here] = []
        seen.update(new)
    return {place: sheet[place] for place in places if place in sheet}


def reveals_nothing(state: str, place: str = "") -> bool:
    """True if a state says that a place holds nothing (not merely that an action had no effect).

    With `place`, the sentence must be about what this place holds: neither about what lies next to it nor about another
    entity.
    """
    about = ""
    for sentence in re.split(r"(?<=[.!?])\s+", state.lower()):
        named = entities(sentence, (place,) if place else ())
        about = named[-1] if named else about
        if _EMPTY.search(sentence) and not _BESIDE.search(sentence):
            return not place or about in ("", place)
    return False


def merge(sheets: Iterable[Mapping[str, Sequence[str]]], places: Sequence[str]) -> Sheet:
    """Union of what several episodes of the same world reveal, in the order of its places.

    A thing has one place: where the longest listing put it.
    """
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


def shuffled(
    sheet: Mapping[str, Sequence[str]],
    rng: random.Random,
    *,
    keep: float = 0.5,
    fits: Callable[[str, str], bool] | None = None,
) -> Sheet:
    """Another world with the same places and things: each thing moves to a random place with probability 1 - keep.

    `fits(thing, place)` limits where a thing may move; a thing that fits nowhere stays.
    """
    places = list(sheet)
    if len(places) < 2:
        return {place: list(things) for place, things in sheet.items()}
    result: Sheet = {place: [] for place in places}
    for place, things in sheet.items():
        for thing in things:
            allowed = [p for p in places if fits(thing, p)] if fits else places
            result[place if rng.random() < keep or not allowed else rng.choice(allowed)].append(thing)
    return result
