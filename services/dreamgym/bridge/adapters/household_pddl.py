"""Writing the complete PDDL game of a specification, in the form that ALFWorld's engine loads.

The problem holds only the classes that occur in the game, which keeps grounding cheap. Each receptacle has a place of
its own: where two share a viewpoint in the layout file, a number is added, because `go to` could not tell them apart.
"""

from __future__ import annotations

import random
from typing import Any

from dreamgym.bridge.adapters.alfworld_data import (
    domain_text,
    floor_plan,
    goal_definition,
    grammar_text,
    receptacle_type,
    tables,
)
from dreamgym.bridge.adapters.household_games import GameSpec

# The domain's actions name these types whether or not the room has them.
_DOMAIN_RECEPTACLE_TYPES = frozenset({"SinkBasin", "Microwave", "Fridge"})
_DOMAIN_OBJECT_TYPES = frozenset({"Knife", "ButterKnife"})
_START = "loc|0|0|0|30"


def game_data(spec: GameSpec) -> dict[str, Any]:
    """The game as the mapping that TextWorld's `PddlEnv.load` takes instead of a file."""
    grammar = grammar_text().replace("UNKNOWN GOAL", spec.instruction)
    return {
        "pddl_domain": domain_text(),
        "grammar": grammar,
        "pddl_problem": problem_text(spec),
        "solvable": True,
        "walkthrough": None,
    }


def problem_text(spec: GameSpec) -> str:
    """The PDDL problem: objects, initial facts and goal."""
    places = _places(spec)
    receptacle_types = {identifier: receptacle_type(identifier) for identifier in spec.receptacles}
    object_types = {identifier: identifier.split("|")[0] for identifier, _ in spec.objects}
    kinds = sorted(set(receptacle_types.values()) | _DOMAIN_RECEPTACLE_TYPES | ({spec.receptacle} - {""}))
    classes = sorted(set(object_types.values()) | _DOMAIN_OBJECT_TYPES)
    objects = ["agent1 - agent"]
    objects += [f"{name}Type - otype" for name in classes] + [f"{name}Type - rtype" for name in kinds]
    objects += [f"{mangle(name)} - object" for name in object_types]
    objects += [f"{mangle(name)} - receptacle" for name in receptacle_types]
    objects += [f"{mangle(place)} - location" for place in sorted({_START, *places.values()})]
    facts = [f"(atLocation agent1 {mangle(_START)})"]
    facts += _table_facts(kinds, classes)
    for identifier, kind in receptacle_types.items():
        name = mangle(identifier)
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {mangle(places[identifier])})"]
        if kind in tables().openable:
            facts.append(f"(openable {name})")
    for identifier, index in spec.objects:
        name, holder = mangle(identifier), spec.receptacles[index]
        facts += [f"(objectType {name} {object_types[identifier]}Type)", f"(inReceptacle {name} {mangle(holder)})"]
        facts.append(f"(objectAtLocation {name} {mangle(places[holder])})")
        facts += [f"({property_} {name})" for property_ in _properties(object_types[identifier], spec)]
    goal = goal_definition(spec.task_type)[0].format(obj=spec.object, recep=spec.receptacle, toggle=spec.lamp)
    header = f"(define (problem {mangle(spec.game_id)})\n(:domain alfred)"
    return "\n".join(
        [header, "(:objects", *objects, ")", "(:init", *facts, ")", goal.replace("#", "-")]
    )  # the goal template closes the problem's own bracket


def mangle(identifier: str) -> str:
    """An ALFRED identifier as a PDDL symbol; ALFWorld's demangler reads it back."""
    for character, word in (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_")):
        identifier = identifier.replace(character, word)
    return identifier


def _table_facts(kinds: list[str], classes: list[str]) -> list[str]:
    table = tables().can_contain
    return [f"(canContain {k}Type {c}Type)" for k in kinds for c in classes if c in table.get(k, ())]


def _properties(kind: str, spec: GameSpec) -> list[str]:
    if kind == spec.lamp:
        return ["toggleable"]
    table = tables()
    named = {
        "isReceptacleObject": table.movable_receptacles,
        "cleanable": table.cleanable,
        "heatable": table.heatable,
        "coolable": table.coolable,
        "sliceable": table.sliceable,
    }
    return ["pickupable", *(name for name, members in named.items() if kind in members)]


def _places(spec: GameSpec) -> dict[str, str]:
    viewpoints = {identifier: viewpoint for identifier, _, viewpoint in floor_plan(spec.floor_plan).receptacles}
    places: dict[str, str] = {}
    for number, identifier in enumerate(spec.receptacles):
        if identifier in viewpoints:
            x, z, rotation, horizon = viewpoints[identifier]
        else:
            rng = random.Random(identifier)
            x, z, rotation, horizon = rng.uniform(-3, 3), rng.uniform(-3, 3), 90 * rng.randrange(4), 30
        place = f"loc|{round(4 * x)}|{round(4 * z)}|{rotation // 90}|{horizon}"
        places[identifier] = place if place not in places.values() and place != _START else f"{place}|{number}"
    return places
