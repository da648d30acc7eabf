"""A symbolic text world: places, things, one pair of hands. Deterministic by seed, pure Python.

The mechanics are those that household text games share (go, open, take one thing, put, change it at a tool, switch
something on); an impossible action changes nothing and yields the world's one refusal sentence.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from dreamgym.trainer.base_model.wording import Transform, Wording


@dataclass(frozen=True)
class Action:
    """One command. `kind` is a key of `phrases.COMMANDS`, or `malformed` with the raw text in `text`."""

    kind: str
    thing: str = ""
    place: str = ""
    verb: str = ""
    text: str = ""


@dataclass(frozen=True)
class Goal:
    """What ends the episode in success: `count` things of a class (changed if `transform`) at a class of places,
    or, for the family `use`, the device of that class switched on with the thing in hand."""

    family: str
    thing_class: str
    target_class: str
    count: int = 1
    transform: Transform | None = None


@dataclass(frozen=True)
class Outcome:
    """What one action did: the sentence the agent reads, the flag, and why (for the reasoning line)."""

    state: str
    flag: str
    valid: bool
    why: str = ""


@dataclass
class World:
    """The hidden and visible facts of one episode."""

    wording: Wording
    places: list[str]
    contents: dict[str, list[str]]
    closed: set[str]
    devices: set[str]
    goal: Goal
    instruction: str
    room: str
    at: str = ""
    holding: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    won: bool = False

    def fork(self) -> World:
        """An independent copy, for asking what another action would do."""
        twin = copy.copy(self)
        twin.contents = {place: list(things) for place, things in self.contents.items()}
        twin.closed, twin.marks, twin.seen = set(self.closed), dict(self.marks), set(self.seen)
        return twin

    def visible(self) -> list[str]:
        """The things that can be reached where the agent stands."""
        return self.contents[self.at] if self.at and self.at not in self.closed else []

    def can_open(self, place: str) -> bool:
        """Whether the place has a door."""
        return class_of(place) in self.wording.closed_classes

    def initial_state(self) -> str:
        """What the agent reads first: the room, and in some wordings the commands and what the tools are for."""
        w = self.wording
        names = [f"{p} (closed)" if w.tells_closed and p in self.closed else p for p in self.places]
        parts = [w.sentences["room"].format(l=w.listing(names), r=self.room)]
        if w.tells_tools:
            for transform in w.transforms:
                tools = [p for p in self.places if class_of(p) == transform.tool]
                if tools:
                    hint = w.sentences["tool_hint"]
                    parts.append(hint.format(p=tools[0], v=transform.verb, a=transform.adjective))
        if w.tells_commands:
            parts.append(w.sentences["command_lead"] + " " + "; ".join(self._command_forms()) + ".")
        return " ".join(parts)

    def _command_forms(self) -> list[str]:
        w, forms = self.wording, []
        for kind in ("goto", "open", "close", "take", "put", "transform", "use", "look", "inventory", "examine"):
            pattern = w.commands[kind]
            if kind != "transform":
                forms.append(pattern.format(o="THING", p="PLACE"))
                continue
            forms.extend(pattern.format(v=t.verb, o="THING", p="PLACE") for t in w.transforms)
        return forms

    def render(self, action: Action) -> str:
        """The command as text."""
        if action.kind == "malformed":
            return action.text
        pattern = self.wording.commands[action.kind]
        return pattern.format(o=action.thing, p=action.place, v=action.verb)

    def step(self, action: Action) -> Outcome:
        """Apply one action; an impossible one changes nothing."""
        why = self.obstacle(action)
        if why:
            return Outcome(self.wording.sentences["refused"], "continue", valid=False, why=why)
        state = getattr(self, f"_do_{action.kind}")(action)
        if action.kind == "quit":
            return Outcome(state, "failure", valid=True)
        self.won = self.won or self.goal_met(action)
        return Outcome(state, "success" if self.won else "continue", valid=True)

    def obstacle(self, action: Action) -> str:
        """Why the action is impossible now, in a few words; empty if it is possible."""
        return _OBSTACLES[action.kind](self, action)

    def goal_met(self, action: Action | None = None) -> bool:
        """Whether the goal holds now, after `action`."""
        goal = self.goal
        if goal.family == "use":
            return (
                action is not None
                and action.kind == "use"
                and class_of(action.thing) == goal.target_class
                and class_of(self.holding) == goal.thing_class
            )
        wanted = goal.transform.adjective if goal.transform else None
        for place in self.places:
            if class_of(place) == goal.target_class:
                fits = [
                    thing
                    for thing in self.contents[place]
                    if class_of(thing) == goal.thing_class and (wanted is None or self.marks.get(thing) == wanted)
                ]
                if len(fits) >= goal.count:
                    return True
        return False

    def _say(self, name: str, **names: str) -> str:
        return self.wording.sentences[name].format(**names)

    def contents_sentence(self, place: str) -> str:
        """What a look into the place reads like; marks it as seen unless it is shut."""
        if place in self.closed:
            return self._say("closed", p=place)
        self.seen.add(place)
        return self._say("contents", p=place, l=self.wording.listing(self.contents[place]))

    def _do_goto(self, action: Action) -> str:
        self.at = action.place
        return " ".join(part for part in (self._say("arrive", p=self.at), self.contents_sentence(self.at)) if part)

    def _do_open(self, action: Action) -> str:
        self.closed.discard(action.place)
        return f"{self._say('opened', p=action.place)} {self.contents_sentence(action.place)}"

    def _do_close(self, action: Action) -> str:
        self.closed.add(action.place)
        return self._say("close_done", p=action.place)

    def _do_take(self, action: Action) -> str:
        self.contents[self.at].remove(action.thing)
        self.holding = action.thing
        return self._say("taken", o=action.thing, p=self.at)

    def _do_put(self, action: Action) -> str:
        things = self.contents[self.at]
        things.insert(0 if self.wording.newest_first else len(things), action.thing)
        self.holding = ""
        return self._say("put_done", o=action.thing, p=self.at)

    def _do_transform(self, action: Action) -> str:
        adjective = next(t.adjective for t in self.wording.transforms if t.verb == action.verb)
        self.marks[action.thing] = adjective
        return self._say("transformed", o=action.thing, p=self.at, v=action.verb, a=adjective)

    def _do_use(self, action: Action) -> str:
        return self._say("used", o=action.thing)

    def _do_look(self, action: Action) -> str:
        if not self.at:
            return self._say("room", l=self.wording.listing(self.places), r=self.room)
        return f"{self._say('facing', p=self.at)} {self.contents_sentence(self.at)}"

    def _do_inventory(self, action: Action) -> str:
        return self._say("holding", l=self.wording.listing([self.holding] if self.holding else []))

    def _do_examine(self, action: Action) -> str:
        if action.thing == self.at:
            return self.contents_sentence(self.at)
        mark = self.marks.get(action.thing)
        if mark:
            return self._say("examined_state", o=action.thing, c=class_of(action.thing), a=mark)
        return self._say("examined", o=action.thing, c=class_of(action.thing))

    def _do_quit(self, action: Action) -> str:
        return self._say("quit_done")


def class_of(name: str) -> str:
    """`mug` of `mug 2`."""
    return name.rpartition(" ")[0]


def _at_place(world: World, action: Action) -> str:
    if action.place not in world.contents:
        return f"no {action.place}."
    return "" if world.at == action.place else f"not at {action.place}."


def _goto(world: World, action: Action) -> str:
    if action.place not in world.contents:
        return f"no {action.place}."
    return f"already at {action.place}." if world.at == action.place else ""


def _open(world: World, action: Action) -> str:
    why = _at_place(world, action)
    if not why and not world.can_open(action.place):
        return f"{action.place} has no door."
    return why or ("" if action.place in world.closed else f"{action.place} is open.")


def _close(world: World, action: Action) -> str:
    why = _at_place(world, action)
    if not why and not world.can_open(action.place):
        return f"{action.place} has no door."
    return why or (f"{action.place} is closed." if action.place in world.closed else "")


def _take(world: World, action: Action) -> str:
    named = "{p}" in world.wording.commands["take"]
    why = _at_place(world, action) if named else ""
    if why:
        return why
    if world.holding:
        return f"holding {world.holding}."
    if world.at in world.closed:
        return f"{world.at} is closed."
    if action.thing not in world.visible():
        return f"{action.thing} is not here."
    return f"{action.thing} is fixed." if action.thing in world.devices else ""


def _put(world: World, action: Action) -> str:
    if world.holding != action.thing:
        return f"not holding {action.thing}."
    why = _at_place(world, action) if "{p}" in world.wording.commands["put"] else ""
    if why:
        return why
    if not world.at:
        return "at no place."
    return f"{world.at} is closed." if world.at in world.closed else ""


def _transform(world: World, action: Action) -> str:
    if world.holding != action.thing:
        return f"not holding {action.thing}."
    why = _at_place(world, action) if "{p}" in world.wording.commands["transform"] else ""
    if why:
        return why
    tool = next((t.tool for t in world.wording.transforms if t.verb == action.verb), "")
    return "" if world.at and class_of(world.at) == tool else f"{world.at or 'nothing'} can not {action.verb}."


def _use(world: World, action: Action) -> str:
    if action.thing not in world.visible():
        return f"{action.thing} is not here."
    return "" if action.thing in world.devices else f"{action.thing} has no switch."


def _examine(world: World, action: Action) -> str:
    near = action.thing in world.visible() or action.thing in (world.holding, world.at)
    return "" if near and action.thing else f"{action.thing} is not here."


def _always(world: World, action: Action) -> str:
    return ""


def _malformed(world: World, action: Action) -> str:
    return "unknown command."


_OBSTACLES = {
    "goto": _goto,
    "open": _open,
    "close": _close,
    "take": _take,
    "put": _put,
    "transform": _transform,
    "use": _use,
    "look": _always,
    "inventory": _always,
    "examine": _examine,
    "quit": _always,
    "malformed": _malformed,
}
