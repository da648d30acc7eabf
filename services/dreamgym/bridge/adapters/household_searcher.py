"""A sensible player of household games that knows only what it has read: goal, room and observations.

It searches receptacles in a random order until it has seen what it needs, then finishes the task. It gives
demonstrations with real search, where the package's own hand-coded expert wanders too long for a short episode.
"""

from __future__ import annotations

import random
import re

from dreamgym.bridge.adapters.alfworld_data import tables
from dreamgym.bridge.adapters.household_games import APPLIANCE, GameSpec

_NAME = re.compile(r"\ba ([a-z]+ \d+)")
_ARRIVE = re.compile(r"^You arrive at ([a-z]+ \d+)\.")
_LISTING = re.compile(r"(?:On the|The) ([a-z]+ \d+)(?:, you see| is open\. In it, you see) (.*)\.")
_CLOSED = re.compile(r"The ([a-z]+ \d+) is closed\.")
_PICK = re.compile(r"^You pick up the ([a-z]+ \d+) from the ([a-z]+ \d+)\.")
_PUT = re.compile(r"^You move the ([a-z]+ \d+) to the ([a-z]+ \d+)\.")
_CHANGE = re.compile(r"^You (clean|heat|cool) the ([a-z]+ \d+) using the")
_LAMP = re.compile(r"^You turn on the ([a-z]+ \d+)\.")
_VERB = {"SinkBasin": "clean", "Microwave": "heat", "Fridge": "cool"}


class HouseholdSearcher:
    """Belief about one running game and the next sensible action under it.

    Only the goal is taken from the specification, never where things lie.
    """

    def __init__(self, spec: GameSpec, initial_state: str, rng: random.Random) -> None:
        self._rng = rng
        self._type = spec.task_type
        self._thing = spec.object.lower()
        self._goal = spec.receptacle.lower()
        self._lamp = spec.lamp.lower()
        appliance = APPLIANCE.get(spec.task_type, "")
        self._appliance, self._verb = appliance.lower(), _VERB.get(appliance, "")
        self._order = _NAME.findall(initial_state)
        rng.shuffle(self._order)
        fitting = {kind.lower() for kind, members in tables().can_contain.items() if spec.object in members}
        # Where such a thing may lie at all comes first; the order within is random.
        self._order.sort(key=lambda name: _kind(name) not in fitting)
        self._contents: dict[str, set[str]] = {}
        self._closed: set[str] = set()
        self._place = ""
        self._held = ""
        self._changed: set[str] = set()
        self._lamp_used = False
        self._target = ""

    def observe(self, text: str) -> None:
        """Take in one observation; text that tells nothing new is passed over."""
        if arrived := _ARRIVE.match(text):
            self._place = arrived[1]
        if closed := _CLOSED.search(text):
            self._closed.add(closed[1])
        if listed := _LISTING.search(text):
            self._closed.discard(listed[1])
            self._contents[listed[1]] = set(_NAME.findall(listed[2]))
        if picked := _PICK.match(text):
            self._held = picked[1]
            self._contents.setdefault(picked[2], set()).discard(picked[1])
        if put := _PUT.match(text):
            self._held = ""
            self._contents.setdefault(put[2], set()).add(put[1])
        if changed := _CHANGE.match(text):
            self._note_change(changed[1], changed[2])
        if _LAMP.match(text):
            self._lamp_used = True
        if text.startswith("You close the "):
            self._closed.add(text.removeprefix("You close the ").rstrip("."))

    def act(self) -> str:
        """The next action."""
        if self._held and _kind(self._held) != self._thing:
            return self._drop()
        if self._type == "look_at_obj_in_light":
            return self._look_in_light()
        if self._held:
            return self._deliver()
        wanted = self._where(self._thing)
        return self._take(*self._rng.choice(wanted)) if wanted else self._explore()

    def _look_in_light(self) -> str:
        lamps = self._where(self._lamp)
        wanted = self._where(self._thing)
        if not self._held:
            return self._take(*wanted[0]) if wanted else self._explore()
        if not lamps:
            return self._explore()
        name, place = lamps[0]
        return self._go(place) or f"use {name}"

    def _deliver(self) -> str:
        if self._appliance and self._held not in self._changed:
            place = self._first_of(self._appliance)
            return self._go(place) or f"{self._verb} {self._held} with {place}"
        place = self._goal_place()
        return self._go(place) or self._open(place) or f"move {self._held} to {place}"

    def _goal_place(self) -> str:
        """The goal receptacle, the same one for both of two things; one that holds such a thing already is best."""
        if not self._target:
            holding = [r for r, members in self._contents.items() if any(_kind(o) == self._thing for o in members)]
            there = [r for r in holding if _kind(r) == self._goal]
            two = self._type == "pick_two_obj_and_place"
            self._target = there[0] if two and there else self._first_of(self._goal)
        return self._target

    def _where(self, kind: str) -> list[tuple[str, str]]:
        """(thing, receptacle) of all such things seen, except those that are where they should be."""
        found = []
        for place in self._order:
            for name in sorted(self._contents.get(place, ())):
                if _kind(name) == kind and not (kind == self._thing and self._is_done(name, place)):
                    found.append((name, place))
        found.sort(key=lambda pair: pair[1] != self._place)
        return found

    def _is_done(self, name: str, place: str) -> bool:
        if not self._goal or _kind(place) != self._goal:
            return False
        if self._appliance:
            return name in self._changed
        # The first of two that lies in a goal receptacle decides which receptacle it will be.
        self._target = self._target or place
        return place == self._target

    def _explore(self) -> str:
        if self._place in self._closed and self._place not in self._contents:
            return f"open {self._place}"
        unseen = [name for name in self._order if name not in self._contents]
        if unseen:
            return self._go(unseen[0]) or f"examine {unseen[0]}"
        return f"go to {self._rng.choice(self._order)}"

    def _take(self, name: str, place: str) -> str:
        return self._go(place) or self._open(place) or f"take {name} from {place}"

    def _drop(self) -> str:
        """Put down what was picked up by mistake, here if that is possible, else where it may lie."""
        kinds = {k.lower() for k, m in tables().can_contain.items() if _kind(self._held) in {o.lower() for o in m}}
        places = sorted(
            (name for name in self._order if _kind(name) in kinds),
            key=lambda name: (name != self._place, name in self._closed),
        )
        if not places:
            return "inventory"
        return self._go(places[0]) or self._open(places[0]) or f"move {self._held} to {places[0]}"

    def _note_change(self, verb: str, name: str) -> None:
        if verb == self._verb:
            self._changed.add(name)
        elif {verb, self._verb} == {"heat", "cool"}:
            self._changed.discard(name)

    def _go(self, place: str) -> str:
        return "" if self._place == place else f"go to {place}"

    def _open(self, place: str) -> str:
        return f"open {place}" if place in self._closed else ""

    def _first_of(self, kind: str) -> str:
        there = [name for name in self._order if _kind(name) == kind]
        return self._place if self._place in there else there[0]


def _kind(name: str) -> str:
    return name.split(" ")[0]
