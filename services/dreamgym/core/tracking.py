"""Follows the entities of a text world through accepted actions: where the agent is, what it holds, what lies where.

Only generic English verbs are known; names, places and sentences come from the texts themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dreamgym.core.world_sheet import action_entities, entities, reveals_nothing


class Verb(StrEnum):
    """What an action is about, by its first word."""

    GO = "go"
    TAKE = "take"
    PUT = "put"
    OPEN = "open"
    CLOSE = "close"
    LOOK = "look"
    CARRY = "carry"
    OTHER = "other"


_WORDS: dict[str, Verb] = {
    word: verb
    for verb, words in {
        Verb.GO: "go walk head travel enter run visit approach navigate reach",
        Verb.TAKE: "take pick get grab lift collect fetch",
        Verb.PUT: "put place move drop leave set insert lay store deposit",
        Verb.OPEN: "open",
        Verb.CLOSE: "close shut",
        Verb.LOOK: "look examine inspect check view search observe describe see",
        Verb.CARRY: "inventory i",
    }.items()
    for word in words.split()
}


@dataclass(frozen=True)
class Move:
    """An action read against a world: its verb, and the places and things that it names."""

    verb: Verb
    word: str
    places: tuple[str, ...]
    things: tuple[str, ...]


def verb_of(word: str) -> Verb:
    """What an action that begins with this word is about."""
    return _WORDS.get(word.lower(), Verb.OTHER)


class Tracker:
    """The state of one episode's world, as far as its texts and its sheet tell."""

    def __init__(self, initial_state: str, sheet: Mapping[str, Sequence[str]]) -> None:
        self.places = entities(initial_state)
        self.contents: dict[str, list[str]] = {place: list(things) for place, things in sheet.items()}
        self.known = {*self.places, *sheet, *(thing for things in sheet.values() for thing in things)}
        self.here = ""
        self.holding: list[str] = []
        self.closed: set[str] = set()
        self.opened: set[str] = set()

    def copy(self) -> Tracker:
        """An independent copy, to try a step on."""
        twin = Tracker("", {})
        twin.places, twin.here = self.places, self.here
        twin.contents = {place: list(things) for place, things in self.contents.items()}
        twin.known, twin.holding = set(self.known), list(self.holding)
        twin.closed, twin.opened = set(self.closed), set(self.opened)
        return twin

    def read(self, action: str) -> Move:
        """What an action means here."""
        return self.move(action, action_entities(action, self.known))

    def move(self, action: str, named: Sequence[str]) -> Move:
        """What an action that names these entities means here."""
        places = tuple(name for name in named if name in self.places)
        things = tuple(name for name in named if name not in self.places)
        word = (action.split() or [""])[0].lower()
        verb = verb_of(word)
        if verb is Verb.PUT and not things and places:  # "move to shelf 1"
            verb = Verb.GO
        if verb is Verb.CARRY and len(action.split()) > 1:
            verb = Verb.OTHER
        if verb is Verb.LOOK and "inventory" in action.lower():
            verb = Verb.CARRY
        return Move(verb, word, places, things)

    def accept(self, move: Move, state: str) -> bool:
        """Follow an accepted action; True if the state lists what the place where the agent is holds."""
        target = move.places[-1] if move.places else self.here
        shown = [name for name in entities(state, self.known) if name not in self.places]
        self.known.update(shown)
        if move.verb is Verb.CARRY:
            self.holding = shown
            return False
        # An unknown verb may only speak of a place (`think: ...`): the state must name it, too.
        moves = move.verb is not Verb.OTHER or target in entities(state, self.known)
        if target and moves and (move.verb is not Verb.LOOK or not move.things):
            self.here = target
        if move.verb is Verb.TAKE and move.things:
            self._take(move.things[0])
        elif move.verb is Verb.PUT and move.things:
            self._put(move.things[0])
        elif move.verb is Verb.CLOSE and self.here:
            self._shut(self.here)
        elif move.verb in (Verb.GO, Verb.OPEN, Verb.LOOK) and not move.things:
            return self._see(state, shown)
        return False

    def _see(self, state: str, shown: list[str]) -> bool:
        if not self.here:
            return False
        if shown or reveals_nothing(state, self.here):
            self.contents[self.here] = shown
            if self.here in self.closed or "open" in state.lower().split():
                self.opened.add(self.here)
            self.closed.discard(self.here)
            return True
        if "closed" in state.lower():
            self._shut(self.here)
        return False

    def _take(self, thing: str) -> None:
        for things in self.contents.values():
            if thing in things:
                things.remove(thing)
        if thing not in self.holding:
            self.holding.append(thing)

    def _put(self, thing: str) -> None:
        if thing in self.holding:
            self.holding.remove(thing)
        if self.here:
            self.contents.setdefault(self.here, []).append(thing)

    def _shut(self, place: str) -> None:
        self.closed.add(place)
        self.opened.discard(place)
