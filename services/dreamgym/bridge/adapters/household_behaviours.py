"""How recorded episodes are played: by a searcher, the package's expert, a noisy searcher, or at random.

Training data for a world model must show refusals too, so the noisy and the random player now and then say something
that looks right but that the engine does not accept.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from dreamgym.bridge.adapters.alfworld_data import receptacle_type, tables
from dreamgym.bridge.adapters.alfworld_engine import normalise_action
from dreamgym.bridge.adapters.household_games import APPLIANCE, GameSpec
from dreamgym.bridge.adapters.household_searcher import HouseholdSearcher
from dreamgym.bridge.adapters.protocol import AdapterState

Behaviour = Literal["planned", "expert", "noisy_expert", "random"]
BEHAVIOURS: tuple[Behaviour, ...] = ("planned", "expert", "noisy_expert", "random")

_NAME = re.compile(r"[a-z]+ \d+")
_UNKNOWN = ("unicorn 1", "television 3", "microwave 7", "cabinet 42", "hammer 1", "fridge 9", "banana 2")


class Player(Protocol):
    """Chooses the next action from the state just seen."""

    def act(self, state: AdapterState) -> str:
        """The next action in the game that is being played."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Chances per step that a player does something else than it would.

    wander: a random admissible action. refused: a plausible action that the engine refuses.
    misread: chance per episode that the goal is misread at first: the cleaning, heating or cooling forgotten, or
    another thing or receptacle taken for the right one. Such episodes nearly succeed and then recover, or do not.
    """

    wander: float = 0.25
    refused: float = 0.12
    misread: float = 0.4


def new_player(behaviour: Behaviour, spec: GameSpec, start: AdapterState, rng: random.Random, noise: Noise) -> Player:
    """The player of one episode; `expert` needs states that carry the expert's action."""
    if behaviour == "expert":
        return _Scripted()
    if behaviour == "random":
        return _Noisy(_Wanderer(rng), spec, rng, Noise(wander=0.0, refused=noise.refused))
    if behaviour == "planned":
        return _Searching(spec, start, rng)
    if rng.random() < noise.misread and (misread := misread_goal(spec, rng)) is not None:
        first, then = _Searching(misread, start, rng), _Searching(spec, start, rng)
        return _Noisy(_Correcting(first, then, after=rng.randint(5, 12)), spec, rng, noise)
    return _Noisy(_Searching(spec, start, rng), spec, rng, noise)


def misread_goal(spec: GameSpec, rng: random.Random) -> GameSpec | None:
    """The game with a goal that is easily taken for the real one, or None if the room offers none."""
    if spec.task_type in APPLIANCE and rng.random() < 0.6:
        return replace(spec, task_type="pick_and_place_simple")
    kinds = {receptacle_type(identifier) for identifier in spec.receptacles}
    table = tables().can_contain
    places = sorted(kind for kind in kinds - {spec.receptacle} if spec.object in table[kind])
    if spec.receptacle and places and rng.random() < 0.7:
        return replace(spec, receptacle=rng.choice(places))
    things = {identifier.split("|")[0] for identifier, _ in spec.objects} - {spec.object, spec.lamp}
    fitting = sorted(thing for thing in things if not spec.receptacle or thing in table[spec.receptacle])
    kept = spec.task_type if spec.task_type not in APPLIANCE else "pick_and_place_simple"
    return replace(spec, task_type=kept, object=rng.choice(fitting)) if fitting else None


class _Scripted:
    def act(self, state: AdapterState) -> str:
        return state.expert_action or "look"


class _Searching:
    def __init__(self, spec: GameSpec, start: AdapterState, rng: random.Random) -> None:
        self._searcher = HouseholdSearcher(spec, start.state, rng)

    def act(self, state: AdapterState) -> str:
        self._searcher.observe(state.state)
        return self._searcher.act()


class _Correcting:
    """Plays for a misread goal first and for the real one after so many steps; both see every state."""

    def __init__(self, first: Player, then: Player, *, after: int) -> None:
        self._first, self._then, self._left = first, then, after

    def act(self, state: AdapterState) -> str:
        self._left -= 1
        mistaken, right = self._first.act(state), self._then.act(state)
        return mistaken if self._left >= 0 else right


class _Wanderer:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def act(self, state: AdapterState) -> str:
        return self._rng.choice(worldly_actions(state))


class _Noisy:
    def __init__(self, inner: Player, spec: GameSpec, rng: random.Random, noise: Noise) -> None:
        self._inner, self._spec, self._rng, self._noise = inner, spec, rng, noise

    def act(self, state: AdapterState) -> str:
        sensible = self._inner.act(state)  # asked first, so that it sees every state
        draw = self._rng.random()
        if draw < self._noise.wander:
            return self._rng.choice(worldly_actions(state))
        if draw < self._noise.wander + self._noise.refused:
            return refused_action(sensible, self._spec, state, self._rng)
        return sensible


def refused_action(sensible: str, spec: GameSpec, state: AdapterState, rng: random.Random) -> str:
    """A plausible action that the engine will refuse: wrong thing, wrong place, unknown name, or malformed."""
    forms: list[Callable[[str, GameSpec, AdapterState, random.Random], str]] = [
        _wrong_thing,
        _wrong_place,
        _unknown_name,
        _malformed,
    ]
    for form in rng.sample(forms, len(forms)):
        action = form(sensible, spec, state, rng)
        if normalise_action(action) not in state.admissible_actions:
            return action
    return "do the task"  # pragma: no cover - a malformed action is never admissible


def _names(state: AdapterState) -> list[str]:
    return sorted({name for action in state.admissible_actions for name in _NAME.findall(action)})


def _wrong_thing(sensible: str, spec: GameSpec, state: AdapterState, rng: random.Random) -> str:
    thing = f"{rng.choice(spec.objects)[0].split('|')[0].lower()} {rng.randint(1, 3)}"
    place = rng.choice(_names(state))
    verbs = ("take {} from {}", "move {} to {}", "clean {} with sinkbasin 1", "heat {} with microwave 1", "examine {}")
    return rng.choice(verbs).format(thing, place)


def _wrong_place(sensible: str, spec: GameSpec, state: AdapterState, rng: random.Random) -> str:
    names = _NAME.findall(sensible)
    place = rng.choice(_names(state))
    return sensible.replace(names[-1], place) if len(names) > 1 else f"open {place}"


def _unknown_name(sensible: str, spec: GameSpec, state: AdapterState, rng: random.Random) -> str:
    names = _NAME.findall(sensible)
    unknown = rng.choice(_UNKNOWN)
    return sensible.replace(rng.choice(names), unknown) if names else f"go to {unknown}"


def _malformed(sensible: str, spec: GameSpec, state: AdapterState, rng: random.Random) -> str:
    words = sensible.split()
    without_numbers = re.sub(r" \d+", "", sensible)
    shapes = [f"{sensible} please", " ".join(reversed(words)), words[0] + " it", f"I {sensible}"]
    return rng.choice([*shapes, without_numbers] if without_numbers != sensible else shapes)


def worldly_actions(state: AdapterState) -> list[str]:
    """The admissible actions but `help`, which prints the game's manual and says nothing of the world."""
    return [action for action in state.admissible_actions if action != "help"]
