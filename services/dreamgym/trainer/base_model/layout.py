"""The plain text layouts of policy and experience model, as pieces of text with a loss weight each.

A piece always starts where a token starts, so encoding the pieces one by one equals encoding the whole.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dreamgym.trainer.base_model.actors import Step, play, random_action
from dreamgym.trainer.base_model.drawing import draw_world
from dreamgym.trainer.base_model.wording import Wording, draw_wording
from dreamgym.trainer.base_model.worlds import Action, Outcome, World, class_of

CONTEXT_WEIGHT = 0.1
"""Loss weight of text that a model of this role only reads."""

Mixture = tuple[float, float, float]
"""Proportions of policy, experience and sheet samples."""
EARLY_MIXTURE: Mixture = (0.42, 0.53, 0.05)
LATE_MIXTURE: Mixture = (0.75, 0.22, 0.03)
"""An experience sample has about five times as many scored tokens as a policy sample, and is learnt first."""


@dataclass(frozen=True)
class Piece:
    """Text with the weight of its tokens in the loss."""

    text: str
    weight: float


@dataclass(frozen=True)
class Branch:
    """One transition asked of the experience model: forks off after `fork` pieces of the main chain."""

    fork: int
    pieces: tuple[Piece, ...]
    kind: str
    known: bool
    """Whether history, demonstrations and sheet determine the next state (wording seen, contents not hidden)."""


@dataclass
class Sample:
    """One sequence: a main chain and, for the experience model, branches."""

    role: str
    main: list[Piece]
    branches: list[Branch] = field(default_factory=list)


def policy_sample(rng: random.Random, world: World, actor: str) -> Sample:
    """A policy transcript; the loss is on the expert's own actions."""
    pieces = [Piece(f"Task: {world.instruction}\n{world.initial_state()}\n>", CONTEXT_WEIGHT)]
    steps = play(rng, world, actor)
    for number, step in enumerate(steps):
        end = ">" if number + 1 < len(steps) else ""
        pieces.append(Piece(f" {step.text}\n", 1.0 if step.by_expert else 0.0))
        pieces.append(Piece(f"{step.outcome.state}\n{end}", CONTEXT_WEIGHT))
    return Sample("policy", pieces)


def sheet_text(world: World, contents: dict[str, list[str]], listed: set[str]) -> str:
    """The world sheet's line: what lies where, for the places in `listed`, in the order of the initial state."""
    facts = [f"{p}: {', '.join(contents[p]) or 'nothing'}" for p in world.places if p in listed]
    return f"World: {'; '.join(facts) or 'unknown'}\n"


def sheet_sample(rng: random.Random, world: World) -> Sample:
    """The initial state, then the sheet to write."""
    head = f"Task: {world.instruction}\n{world.initial_state()}\n"
    return Sample(
        "sheet", [Piece(head, CONTEXT_WEIGHT), Piece(sheet_text(world, world.contents, set(world.places)), 1.0)]
    )


def experience_sample(rng: random.Random, wording: Wording, branches: int = 5) -> Sample:
    """A played episode with its sheet, and transitions forking off it: played ones and others that were possible."""
    world = draw_world(rng, wording)
    start = world.fork()
    before: list[World] = []
    shadow = world.fork()
    steps = play(rng, world, rng.choices(("expert", "noisy", "random"), (3, 5, 2))[0], limit=rng.choice((12, 18, 24)))
    for step in steps:
        before.append(shadow.fork())
        shadow.step(step.action)
    listed = _listed(rng, start, shadow)
    pieces = [
        Piece(sheet_text(start, start.contents, listed), 0.0),
        Piece(f"Task: {start.instruction}\n{start.initial_state()}\n", CONTEXT_WEIGHT),
    ]
    for step in steps:
        pieces.append(Piece(f"> {step.text}\n", CONTEXT_WEIGHT))
        pieces.append(Piece(f"{step.outcome.state}\n", CONTEXT_WEIGHT))
    pool = demonstrations(rng, wording)
    chosen = sorted(rng.choices(range(len(steps)), k=branches))
    sample = Sample("experience", pieces)
    taken: set[tuple[int, str]] = set()
    for index in chosen:
        action = steps[index].action if rng.random() < 0.55 else random_action(rng, before[index])
        if (index, before[index].render(action)) in taken:
            continue
        taken.add((index, before[index].render(action)))
        sample.branches.append(_branch(rng, before[index], steps[:index], action, pool, listed, fork=2 + 2 * index))
    return sample


def demonstrations(rng: random.Random, wording: Wording) -> list[Step]:
    """Transitions of two other episodes of the same wording, to retrieve from."""
    return [step for actor in ("noisy", "random") for step in play(rng, draw_world(rng, wording), actor, limit=16)]


def _listed(rng: random.Random, start: World, end: World) -> set[str]:
    """The places on the sheet: all, those that the episode revealed (hindsight), or a random part."""
    form = rng.random()
    if form < 0.5:
        return set(start.places)
    if form < 0.8:
        return set(end.seen)
    return {place for place in start.places if rng.random() < 0.7}


def _kind(action: Action, outcome: Outcome) -> str:
    return action.kind if outcome.valid else "refuse"


def _branch(
    rng: random.Random, world: World, history: list[Step], action: Action, pool: list[Step], listed: set[str], fork: int
) -> Branch:
    after = world.fork()
    outcome = after.step(action)
    kind = _kind(action, outcome)
    demos = _retrieve(rng, pool, action)
    lines = [f"~ > {demo.text} = {demo.outcome.state}\n" for demo in demos]
    reveals = _reveals(action, after) if outcome.valid else ""
    hidden = bool(reveals) and reveals not in listed and reveals not in world.seen
    spoken = {_kind(step.action, step.outcome) for step in [*history, *demos]}
    shut = action.kind == "goto" and after.at in after.closed
    known = kind in spoken and not hidden and action.kind != "quit"
    if action.kind == "goto" and outcome.valid:
        known = (
            known and _door_known(world, history, demos, action.place) and (not shut or _shut_spoken(demos, history))
        )
    reasoning = reason(world.wording, action, outcome, after, hidden)
    pieces = (
        Piece("".join(lines) + f"> {world.render(action)}\n?", 0.0),
        Piece(f" {reasoning}\n= {outcome.state}\n# {outcome.flag}\n", 1.0),
    )
    return Branch(fork, pieces, f"{kind}_closed" if shut and outcome.valid else kind, known)


def _door_known(world: World, history: list[Step], demos: list[Step], place: str) -> bool:
    """Whether it can be told that the place is open or shut: it was visited, its kind was, or the room says it."""
    if world.wording.tells_closed or place in world.seen:
        return True
    visited = {class_of(s.action.place) for s in [*history, *demos] if s.action.kind == "goto" and s.outcome.valid}
    return class_of(place) in visited


def _shut_spoken(demos: list[Step], history: list[Step]) -> bool:
    opens = ("open", "close")
    return any(step.action.kind in opens and step.outcome.valid for step in [*history, *demos])


def _retrieve(rng: random.Random, pool: list[Step], action: Action) -> list[Step]:
    """Up to four transitions, mostly of the same kind of action, as a retrieval by similarity would bring."""
    same = [step for step in pool if step.action.kind == action.kind]
    count, chosen = rng.choice((0, 1, 2, 3, 4, 4)), []
    for _ in range(count):
        source = same if same and rng.random() < 0.8 else pool
        candidate = rng.choice(source)
        if candidate not in chosen:
            chosen.append(candidate)
    return chosen


def _reveals(action: Action, after: World) -> str:
    """The place whose contents the next state tells, or none."""
    tells = action.kind in ("goto", "open", "look") or (action.kind == "examine" and action.thing == after.at)
    return after.at if tells and after.at and after.at not in after.closed else ""


def reason(wording: Wording, action: Action, outcome: Outcome, after: World, hidden: bool) -> str:
    """The one-line scratch work: possible or why not; where, holding what; what the place holds now."""
    words = wording.reasons
    if not outcome.valid:
        return f"{words['bad']} {outcome.why}"
    parts = [words["valid"]]
    if after.at:
        parts.append(words["at"].format(p=after.at))
    parts.append(words["holding"].format(h=after.holding or "nothing"))
    line = "; ".join(parts)
    place = _reveals(action, after)
    if place and hidden:
        line += "; " + words["unknown"].format(p=place)
    elif place:
        line += "; " + words["has"].format(p=place, l=", ".join(after.contents[place]) or "nothing")
    elif after.at in after.closed:
        line += "; " + words["shut"].format(p=after.at)
    else:
        line += "."
    return f"{line} {words['goal']}" if outcome.flag == "success" else line


def draw_sample(rng: random.Random, mixture: Mixture = EARLY_MIXTURE) -> Sample:
    """One sample of a fresh wording and world: policy, experience or sheet in the given proportions."""
    role = rng.choices(("policy", "experience", "sheet"), mixture)[0]
    wording = draw_wording(rng)
    if role == "experience":
        return experience_sample(rng, wording)
    world = draw_world(rng, wording)
    if role == "sheet":
        return sheet_sample(rng, world)
    return policy_sample(rng, world, "expert" if rng.random() < 0.6 else "noisy")
