"""Draw one episode's world: places, things, and a goal that can be reached and is not yet met."""

from __future__ import annotations

import random

from dreamgym.trainer.base_model.phrases import TASKS
from dreamgym.trainer.base_model.wording import Wording
from dreamgym.trainer.base_model.worlds import Goal, World, class_of


def draw_world(rng: random.Random, wording: Wording) -> World:
    """Draw one episode's world: which places, what lies where, and a goal that is reachable and not yet met."""
    family = rng.choice(("put", "transform", "two", "use"))
    transform = rng.choice(wording.transforms) if family == "transform" else None
    places = _draw_places(rng, wording, must_have=transform.tool if transform else None)
    thing_classes = rng.sample(wording.object_classes, rng.randint(2, 6))
    thing_class = thing_classes[0]
    classes = [class_of(place) for place in places]
    target_classes = sorted({c for c in classes if transform is None or c != transform.tool or len(set(classes)) == 1})
    target_class = rng.choice(target_classes)
    contents: dict[str, list[str]] = {place: [] for place in places}
    outside = [place for place in places if class_of(place) != target_class] or places
    for thing in _draw_things(rng, wording, thing_classes, at_least_two=family == "two"):
        pool = outside if class_of(thing) == thing_class and family != "use" and rng.random() < 0.85 else places
        contents[rng.choice(pool)].append(thing)
    devices: set[str] = set()
    if family == "use" or rng.random() < 0.3:
        device_class = rng.choice(wording.device_classes)
        for number in range(1, 2 + (rng.random() < 0.2)):
            device = f"{device_class} {number}"
            devices.add(device)
            contents[rng.choice(places)].append(device)
        if family == "use":
            target_class = device_class
    for things in contents.values():
        rng.shuffle(things)
    goal = Goal(family, thing_class, target_class, 2 if family == "two" else 1, transform)
    instruction = rng.choice(TASKS[family]).format(
        c=thing_class, t=target_class, v=transform.verb if transform else "", a=transform.adjective if transform else ""
    )
    closed = {place for place in places if class_of(place) in wording.closed_classes and rng.random() < 0.95}
    world = World(wording, places, contents, closed, devices, goal, instruction, wording.sentences["room_name"])
    if world.goal_met():
        return draw_world(rng, wording)
    return world


def _draw_places(rng: random.Random, wording: Wording, must_have: str | None) -> list[str]:
    total = rng.randint(3, 8)
    kinds = rng.sample(wording.place_classes, rng.randint(2, min(5, total)))
    if must_have and must_have not in kinds:
        kinds[0] = must_have
    counts = dict.fromkeys(kinds, 1)
    for _ in range(total - len(kinds)):
        counts[rng.choice(kinds)] += 1
    places = [name for kind, count in counts.items() for name in _numbered(rng, wording, kind, min(count, 6))]
    if rng.random() < 0.7:
        rng.shuffle(places)
    return places


def _draw_things(rng: random.Random, wording: Wording, kinds: list[str], at_least_two: bool) -> list[str]:
    total = rng.randint(max(4, len(kinds)), 10)
    counts = dict.fromkeys(kinds, 1)
    if at_least_two:
        counts[kinds[0]] = 2
    while sum(counts.values()) < total:
        kind = rng.choice(kinds)
        if counts[kind] < 4:
            counts[kind] += 1
        elif all(count >= 4 for count in counts.values()):
            break
    return [name for kind, count in counts.items() for name in _numbered(rng, wording, kind, count)]


def _numbered(rng: random.Random, wording: Wording, kind: str, count: int) -> list[str]:
    """Names of one class: 1, 2, ... in tidy wordings, else scattered up to 12."""
    if wording.tidy_numbers:
        return [f"{kind} {number}" for number in range(1, count + 1)]
    highest = 6 if rng.random() < 0.7 else 12
    return [f"{kind} {number}" for number in sorted(rng.sample(range(1, highest + 1), count))]
