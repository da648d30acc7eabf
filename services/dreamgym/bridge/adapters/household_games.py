"""Our own household games on ALFRED's real floor plans, for all six ALFWorld task types.

A game is a small JSON-serialisable specification; `household_pddl` writes the full PDDL game from it. The games are
NOT ALFWorld's official splits, and a score on them is never an ALFWorld score.

Split rule: within each of the four room kinds (kitchens 1-30, living rooms 201-230, bedrooms 301-330, bathrooms
401-430) plans 1-6 are `test` (ALFRED's own held-out scenes), 7-10 are `valid`, 11-30 are `train`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from dreamgym.bridge.adapters.alfworld_data import FloorPlan, floor_plan, goal_definition, tables
from dreamgym.bridge.adapters.protocol import TaskSpecError

Rooms = Literal["small", "medium", "full"]
Split = Literal["train", "valid", "test"]

SPLIT_PLANS: dict[str, tuple[int, ...]] = {
    "test": tuple(range(1, 7)),
    "valid": tuple(range(7, 11)),
    "train": tuple(range(11, 31)),
}
ROOM_OFFSETS = {"kitchen": 0, "living_room": 200, "bedroom": 300, "bathroom": 400}

# Room kinds that ALFRED itself allows for each task type.
TASK_ROOMS: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": ("kitchen", "living_room", "bathroom", "bedroom"),
    "look_at_obj_in_light": ("living_room", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "living_room", "bathroom", "bedroom"),
}
TASK_TYPES: tuple[str, ...] = tuple(TASK_ROOMS)
APPLIANCE = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}

_SIZES: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "small": ((4, 6), (5, 9)),
    "medium": ((7, 12), (9, 16)),
    "full": ((99, 99), (18, 30)),
}
_LAMPS = ("DeskLamp", "FloorLamp")
_LAMP_STANDS = frozenset({"SideTable", "CoffeeTable", "DiningTable", "Desk", "Dresser", "Shelf"})
# The layout files give no coordinates for these; ALFRED's own scenes have them where the objects file names them.
_UNPLACED_RECEPTACLES = {"CoffeeMachine": 1, "Toaster": 1, "StoveBurner": 4}
# Classes in ALFRED's table that a hand does not carry.
_NOT_CARRIED = frozenset({"Box", "Painting", "LaundryHamperLid", "Faucet", *_LAMPS})
_ATTEMPTS = 400


@dataclass(frozen=True, slots=True)
class GameSpec:
    """Everything that makes a game. `GameSpec.from_json(spec.to_json()) == spec`.

    object, receptacle, lamp: the classes that the goal names; the latter two are empty where it names none.
    receptacles: identifiers, in ALFRED's form `Cabinet|+00.68|+00.50|-02.20`.
    objects: (identifier, index into `receptacles`) of every thing and where it lies at the start.
    """

    game_id: str
    split: str
    rooms: str
    floor_plan: str
    task_type: str
    object: str
    receptacle: str
    lamp: str
    instruction: str
    receptacles: tuple[str, ...]
    objects: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain JSON values, under 2 KB for small and medium rooms."""
        return {**asdict(self), "receptacles": list(self.receptacles), "objects": [list(o) for o in self.objects]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GameSpec:
        """Read what `to_json` wrote. Raises `TaskSpecError` if a field is missing or of the wrong kind."""
        try:
            texts = {name: str(value[name]) for name in cls.__slots__ if name not in ("receptacles", "objects")}
            receptacles = tuple(str(identifier) for identifier in value["receptacles"])
            objects = tuple((str(identifier), int(index)) for identifier, index in value["objects"])
        except (KeyError, TypeError, ValueError) as error:
            raise TaskSpecError(
                f"The game specification is incomplete ({error!r}).", remedy="Pass what GameSpec.to_json() returned."
            ) from error
        if texts["task_type"] not in TASK_ROOMS or any(not 0 <= index < len(receptacles) for _, index in objects):
            raise TaskSpecError(
                f"The game specification {texts['game_id']} names an unknown task type or receptacle.",
                remedy="Pass what GameSpec.to_json() returned.",
            )
        return cls(**texts, receptacles=receptacles, objects=objects)

    @property
    def layout(self) -> tuple[Any, ...]:
        """What two games must differ in to count as distinct: everything but the made-up coordinates."""
        things = sorted((identifier.split("|")[0], index) for identifier, index in self.objects)
        goal = (self.task_type, self.object, self.receptacle, self.lamp)
        return (self.floor_plan, goal, self.receptacles, tuple(things))


@dataclass(frozen=True, slots=True)
class _Goal:
    object: str
    receptacle: str = ""
    lamp: str = ""


def generate_game(
    seed: int, *, task_type: str | None = None, rooms: Rooms = "small", split: Split = "train"
) -> GameSpec:
    """Make one game; the same arguments always make the same one.

    Raises `TaskSpecError` for an unknown task type, room size or split.
    """
    if split not in SPLIT_PLANS or rooms not in get_args(Rooms) or (task_type and task_type not in TASK_ROOMS):
        raise TaskSpecError(
            f"There is no game with task_type={task_type!r}, rooms={rooms!r}, split={split!r}.",
            remedy=f"Use a task type of {', '.join(TASK_TYPES)}; rooms small, medium, full; split train, valid, test.",
        )
    rng = random.Random(f"household:{split}:{rooms}:{task_type}:{seed}")
    kind = task_type or rng.choice(TASK_TYPES)
    for _ in range(_ATTEMPTS):
        spec = _draw(rng, seed, kind, rooms, split)
        if spec is not None:
            return spec
    raise TaskSpecError(
        f"No {kind} game could be drawn for split {split}, seed {seed}.", remedy="Use another seed."
    )  # pragma: no cover - every split has rooms for every type


def generate_games(count: int, *, seed: int, rooms: Rooms = "small", split: Split = "train") -> Iterator[GameSpec]:
    """Yield `count` distinct games; every block of six consecutive ones has each task type once."""
    rng = random.Random(f"household-set:{split}:{rooms}:{seed}")
    seen: set[tuple[Any, ...]] = set()
    block: list[str] = []
    while len(seen) < count:
        if not block:
            block = rng.sample(TASK_TYPES, len(TASK_TYPES))
        spec = generate_game(rng.randrange(2**31), task_type=block[-1], rooms=rooms, split=split)
        if spec.layout not in seen:
            seen.add(spec.layout)
            block.pop()
            yield spec


def known_receptacles(plan: FloorPlan) -> dict[str, str]:
    """Identifier to type of every receptacle of the room, with the made-up ones for those without coordinates."""
    known = {identifier: kind for identifier, kind, _ in plan.receptacles}
    present = plan.receptacle_types
    for kind, copies in _UNPLACED_RECEPTACLES.items():
        if kind in plan.object_types and kind not in present:
            rng = random.Random(f"{plan.name}:{kind}")
            known.update({_identifier(kind, rng): kind for _ in range(copies)})
    return known


def _draw(rng: random.Random, seed: int, task_type: str, rooms: str, split: str) -> GameSpec | None:
    room_kind = rng.choice(TASK_ROOMS[task_type])
    plan = floor_plan(f"FloorPlan{ROOM_OFFSETS[room_kind] + rng.choice(SPLIT_PLANS[split])}")
    known = known_receptacles(plan)
    goal = _draw_goal(rng, task_type, plan, frozenset(known.values()))
    receptacles = _draw_receptacles(rng, task_type, goal, known, rooms) if goal else None
    if goal is None or receptacles is None:
        return None
    types = [known[identifier] for identifier in receptacles]
    objects = _draw_objects(rng, task_type, goal, plan, types, rooms)
    if objects is None:
        return None
    template = rng.choice(goal_definition(task_type)[1])
    names = {"obj": goal.object.lower(), "recep": goal.receptacle.lower(), "toggle": goal.lamp.lower()}
    label = "-".join((task_type, goal.object, goal.receptacle or goal.lamp, plan.name.removeprefix("FloorPlan")))
    return GameSpec(
        game_id=f"{split}-{rooms}-{label}-{seed:08x}",
        split=split,
        rooms=rooms,
        floor_plan=plan.name,
        task_type=task_type,
        object=goal.object,
        receptacle=goal.receptacle,
        lamp=goal.lamp,
        instruction=template.format(**names),
        receptacles=tuple(receptacles),
        objects=tuple(objects),
    )


def _carried(plan: FloorPlan, receptacle_types: frozenset[str]) -> list[str]:
    """Classes of things that ALFRED has in this room, that a hand carries and that fit somewhere in it."""
    fitting: set[str] = set()
    for kind in receptacle_types:
        fitting |= tables().can_contain[kind]
    return sorted((plan.object_types & fitting) - _NOT_CARRIED)


def _draw_goal(rng: random.Random, task_type: str, plan: FloorPlan, types: frozenset[str]) -> _Goal | None:
    table = tables()
    things = _carried(plan, types)
    appliance = APPLIANCE.get(task_type)
    if appliance:
        able = {"SinkBasin": table.cleanable, "Microwave": table.heatable, "Fridge": table.coolable}[appliance]
        things = [thing for thing in things if thing in able]
        if appliance not in types:
            return None
    if not things:
        return None
    thing = rng.choice(things)
    if task_type == "look_at_obj_in_light":
        lamps = [lamp for lamp in _LAMPS if lamp in plan.object_types]
        return _Goal(thing, lamp=rng.choice(lamps)) if lamps and types & _LAMP_STANDS else None
    places = sorted(kind for kind in types if thing in table.can_contain[kind] and kind != appliance)
    return _Goal(thing, rng.choice(places)) if places else None


def _draw_receptacles(
    rng: random.Random, task_type: str, goal: _Goal, known: dict[str, str], rooms: str
) -> list[str] | None:
    """Choose the receptacles of the room: what the task needs first, then as many kinds as there is room for."""
    by_type: dict[str, list[str]] = {}
    for identifier, kind in sorted(known.items()):
        by_type.setdefault(kind, []).append(identifier)
    needed = [kind for kind in (goal.receptacle, APPLIANCE.get(task_type, "")) if kind]
    if goal.lamp:
        needed.append(rng.choice(sorted(by_type.keys() & _LAMP_STANDS)))
    (fewest, most), _ = _SIZES[rooms]
    size = min(rng.randint(fewest, most), len(known))
    chosen = [rng.choice(by_type[kind]) for kind in needed]
    if len(known) < 4:
        return None
    while len(chosen) < size:
        free = {kind: [i for i in ids if i not in chosen] for kind, ids in by_type.items()}
        chosen.append(rng.choice(free[rng.choice(sorted(kind for kind, ids in free.items() if ids))]))
    return sorted(chosen)


def _draw_objects(
    rng: random.Random, task_type: str, goal: _Goal, plan: FloorPlan, types: list[str], rooms: str
) -> list[tuple[str, int]] | None:
    """Place the things. The goal never holds at the start; the lamp stands on a surface."""
    table = tables()
    fits = {thing: [i for i, kind in enumerate(types) if thing in table.can_contain[kind]] for thing in _NOT_CARRIED}
    for thing in _carried(plan, frozenset(types)):
        fits[thing] = [i for i, kind in enumerate(types) if thing in table.can_contain[kind]]
    sources = list(fits.get(goal.object, []))
    outside = [i for i in sources if types[i] != goal.receptacle]
    two = task_type == "pick_two_obj_and_place"
    copies = rng.choice((2, 2, 3)) if two else rng.choice((1, 1, 2))
    # A thing may wait in the goal receptacle only where that alone does not yet win.
    inside_allowed = {"pick_and_place_simple": 0, "pick_two_obj_and_place": 1}.get(task_type, copies)
    placed: list[tuple[str, int]] = []
    inside = 0
    for _ in range(copies):
        choices = sources if inside < inside_allowed else outside
        if not choices or not outside:
            return None
        index = rng.choice(choices)
        inside += index not in outside
        placed.append((_identifier(goal.object, rng), index))
    if goal.lamp:
        stands = [i for i, kind in enumerate(types) if kind in _LAMP_STANDS]
        placed.append((_identifier(goal.lamp, rng), rng.choice(stands)))
    (fewest, most) = _SIZES[rooms][1]
    others = [thing for thing in sorted(fits) if thing not in _NOT_CARRIED and thing != goal.object and fits[thing]]
    if not others:
        return None
    for _ in range(max(0, rng.randint(fewest, most) - len(placed))):
        thing = rng.choice(others)
        if sum(identifier.startswith(f"{thing}|") for identifier, _ in placed) < 3:  # ALFRED's own limit of copies
            placed.append((_identifier(thing, rng), rng.choice(fits[thing])))
    return sorted(placed)


def _identifier(kind: str, rng: random.Random) -> str:
    x, y, z = rng.uniform(-3, 3), rng.uniform(0.2, 1.8), rng.uniform(-3, 3)
    return f"{kind}|{x:+06.2f}|{y:+06.2f}|{z:+06.2f}"
