"""Recorded worlds, and the world of one dream episode drawn from them.

A world depends only on (task, seed): the episodes of a group share it, another seed gives another one, and a resumed run
finds the same.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.core.episodes import Task
from dreamgym.core.world_sheet import Sheet, class_of, entities, parse, shuffled
from dreamgym.experience.cards import World

_WORD = re.compile(r"[a-z0-9_-]+")
_NUMBERS = {"two": 2, "both": 2, "three": 3, "four": 4}


@dataclass(frozen=True)
class DreamWorld:
    """Where an episode begins and what its world holds."""

    initial_state: str
    sheet: Sheet
    recorded_task_id: str = ""


class WorldBook:
    """The recorded worlds of one experience model and what they teach about worlds of this kind."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self.worlds = tuple(worlds)
        self._by_task = {world.task_id: world for world in reversed(self.worlds)}
        self._by_state = {_normal(world.initial_state): world for world in reversed(self.worlds)}
        self._bags = [Counter(words(f"{world.initial_state}")) for world in self.worlds]
        self._instructions = [Counter(words(world.instruction)) for world in self.worlds]
        self._contents: dict[str, list[list[str]]] = defaultdict(list)
        self._homes: dict[str, set[str]] = defaultdict(set)
        self.place_classes: set[str] = set()
        for world in self.worlds:
            self.place_classes.update(class_of(place) for place in entities(world.initial_state))
            for place, things in world.sheet.items():
                self.place_classes.add(class_of(place))
                self._contents[class_of(place)].append([class_of(thing) for thing in things])
                for thing in things:
                    self._homes[class_of(thing)].add(class_of(place))
        self.thing_classes = set(self._homes)
        self._order = listing_order(things for world in self.worlds for things in world.sheet.values())

    def recorded(self, task: Task) -> World | None:
        """The world recorded for this task: by the world that it names, by its id, or by the same initial state."""
        named = world_metadata(task).get("task_id")
        return (
            self._by_task.get(str(named) if named else "")
            or self._by_task.get(task.id)
            or (self._by_state.get(_normal(task.initial_state)) if task.initial_state.strip() else None)
        )

    def most_similar(self, task: Task) -> World | None:
        """The world whose initial state (for a task without one: whose instruction) shares most words with the task's."""
        if not self.worlds:
            return None
        by_state = bool(task.initial_state.strip())
        bag = Counter(words(task.initial_state if by_state else task.instruction))
        bags = self._bags if by_state else self._instructions
        return self.worlds[max(range(len(bags)), key=lambda index: (_cosine(bag, bags[index]), -index))]

    def world_for(self, task: Task, seed: int, keep: float) -> DreamWorld:
        """The world of an episode of `task`; seed 0 and fixed worlds are as recorded, other seeds move things about."""
        settled = world_metadata(task)
        recorded = self.recorded(task)
        source = recorded or self.most_similar(task)
        initial_state = task.initial_state.strip() or (source.initial_state if source else "")
        places = entities(initial_state)
        sheet = dict(source.sheet) if source else {}
        if recorded is None:
            sheet = {place: things for place, things in sheet.items() if place in places}
        if "sheet" in settled:
            sheet = parse(str(settled["sheet"]))
        fixed = bool(settled.get("fixed")) or bool(recorded and recorded.fixed)
        rng = random.Random(f"{task.id}|{initial_state}|{seed}")
        if seed != 0 and not fixed:
            named = set(named_classes(task.instruction, self.place_classes))
            required = self.required(task.instruction)

            def may_move(thing: str, place: str) -> bool:
                at_target = class_of(thing) in required and class_of(place) in named
                return self._fits(thing, place) and not at_target

            sheet = shuffled(sheet, rng, keep=keep, fits=may_move)
        if sheet or self.worlds:
            sheet = self._filled(sheet, places, rng)
            sheet = self._with_required(sheet, task.instruction, rng)
        listed = {place: self._sorted(sheet[place]) for place in [*places, *sheet] if place in sheet}
        return DreamWorld(initial_state, listed, source.task_id if source else "")

    def required(self, instruction: str) -> dict[str, int]:
        """Classes of things that an instruction names, with how many of each it needs."""
        return required_things(instruction, self.thing_classes - self.place_classes)

    def _fits(self, thing: str, place: str) -> bool:
        return class_of(place) in self._homes.get(class_of(thing), ())

    def _filled(self, sheet: Sheet, places: Sequence[str], rng: random.Random) -> Sheet:
        """Give every place of the initial state contents, drawn from recorded places of its class."""
        filled = dict(sheet)
        taken = {thing for things in sheet.values() for thing in things}
        for place in places:
            if place not in filled:
                known = self._contents.get(class_of(place))
                drawn = rng.choice(known) if known else []
                filled[place] = [_next_name(cls, taken) for cls in drawn]
        return filled

    def _with_required(self, sheet: Sheet, instruction: str, rng: random.Random) -> Sheet:
        """Make sure that what the instruction asks for exists somewhere, but not where it is to be brought."""
        taken = {thing for things in sheet.values() for thing in things}
        named = set(named_classes(instruction, self.place_classes))
        for cls, wanted in self.required(instruction).items():
            for _ in range(wanted - sum(class_of(thing) == cls for thing in taken)):
                elsewhere = [place for place in sheet if class_of(place) not in named] or list(sheet)
                plausible = [place for place in elsewhere if self._fits(f"{cls} 1", place)] or elsewhere
                if plausible:
                    place = rng.choice(plausible)
                    sheet[place] = [*sheet[place], _next_name(cls, taken)]
        return sheet

    def _sorted(self, things: Sequence[str]) -> list[str]:
        return sorted(things, key=self._order) if self._order else list(things)


def world_metadata(task: Task) -> dict[str, Any]:
    """The `world` object of a task's metadata: `task_id` of a recorded world, a `sheet`, or `fixed`."""
    value = task.metadata.get("world")
    return dict(value) if isinstance(value, dict) else {}


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def named_classes(instruction: str, classes: Iterable[str]) -> list[str]:
    """Classes that an instruction names as whole words (also in the plural), in order of appearance."""
    text = " " + " ".join(words(instruction)) + " "
    found = {
        cls: min(at)
        for cls in classes
        if (at := [i for form in (cls, f"{cls}s") if (i := text.find(f" {form} ")) >= 0])
    }
    return sorted(found, key=lambda cls: (found[cls], cls))


def required_things(instruction: str, classes: Iterable[str]) -> dict[str, int]:
    """Named classes with the number word that stands before them, 1 where there is none."""
    listed = words(instruction)
    needs: dict[str, int] = {}
    for cls in named_classes(instruction, classes):
        head = cls.split()[0]
        at = next((i for i, word in enumerate(listed) if word in (head, f"{head}s")), 0)
        needs[cls] = _NUMBERS.get(listed[at - 1], 1) if at else 1
    return needs


def listing_order(listings: Iterable[Sequence[str]]) -> Callable[[str], tuple[str, int]] | None:
    """The order in which an environment lists things, if its recorded listings agree on one (95 % of them).

    Tried: by class then number upwards, by class then number downwards. A varied world is listed in the same order, so that
    it reads as the recorded ones do.
    """
    several = [list(things) for things in listings if len(things) > 1]
    orders: tuple[Callable[[str], tuple[str, int]], ...] = (_descending, _ascending)
    for key in orders:
        if several and sum(sorted(things, key=key) == things for things in several) >= 0.95 * len(several):
            return key
    return None


def _ascending(thing: str) -> tuple[str, int]:
    return class_of(thing), int(number) if (number := thing.rpartition(" ")[2]).isdigit() else 0


def _descending(thing: str) -> tuple[str, int]:
    cls, number = _ascending(thing)
    return cls, -number


def _next_name(cls: str, taken: set[str]) -> str:
    number = 1
    while f"{cls} {number}" in taken:
        number += 1
    taken.add(f"{cls} {number}")
    return f"{cls} {number}"


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def _cosine(a: Counter[str], b: Counter[str]) -> float:
    dot = sum(count * b[word] for word, count in a.items())
    size = math.sqrt(sum(c * c for c in a.values()) * sum(c * c for c in b.values()))
    return dot / size if size else 0.0
