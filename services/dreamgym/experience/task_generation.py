"""Variations of seed tasks by recombination, grounded in recorded worlds (METHOD section 5).

A template is an instruction whose class names are slots. A variation fills the slots of a seed's template with other classes
that tasks of the same template were recorded with (so their roles fit), in a recorded world that holds them, and rewrites the
seed's success criterion by the same substitution. Generated tasks have no real game and are never evaluated in the real
environment.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dreamgym.core.criteria import validate_criterion
from dreamgym.core.episodes import Task
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.world_sheet import class_of, entities
from dreamgym.experience.cards import World
from dreamgym.experience.worlds import WorldBook, named_classes, required_things, words

TRIES_PER_TASK = 40
MAX_COUNT = 256


@dataclass(frozen=True)
class GenerationSettings:
    """How many variations, drawn with which seed, and which instructions exist already."""

    environment_id: str
    count: int
    seed: int = 0
    known_instructions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejected:
    """A candidate that the validity gate refused."""

    instruction: str
    reason: str


@dataclass
class Generated:
    """Accepted variations, and why the others were refused."""

    tasks: list[Task] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(frozen=True)
class Template:
    """An instruction with its class names replaced by numbered slots."""

    text: str
    fillers: tuple[str, ...]

    def filled(self, fillers: Sequence[str]) -> str:
        return self.text.format(*fillers)


def generate_tasks(book: WorldBook, seeds: Sequence[Task], settings: GenerationSettings) -> Generated:
    """Variations of `seeds`, the first of which had the highest variance and is varied first and most."""
    check_count(settings.count)
    result = Generated()
    gate = Gate(book, seeds, settings.known_instructions)
    streams = [_propose(book, seed, random.Random(f"{settings.seed}|{seed.id}")) for seed in seeds]
    budget = settings.count * TRIES_PER_TASK
    while streams and len(result.tasks) < settings.count and budget > 0:
        for stream in list(streams):
            budget -= 1
            candidate = next(stream, None)
            if candidate is None:
                streams.remove(stream)
                continue
            admit(result, gate, candidate, settings)
            if len(result.tasks) >= settings.count:
                break
    return result


@dataclass(frozen=True)
class Candidate:
    """A proposed variation before the gate. `criterion` is None where the seed has none."""

    seed: Task
    instruction: str
    criterion: Mapping[str, Any] | None
    world: World
    fault: str = ""


def admit(result: Generated, gate: Gate, candidate: Candidate, settings: GenerationSettings) -> None:
    """Add a candidate to the tasks if it passes the gate, else to the rejected ones with the reason."""
    reason = candidate.fault or gate.fault(candidate)
    if reason:
        result.rejected.append(Rejected(candidate.instruction, reason))
        return
    gate.remember(candidate.instruction)
    key = f"{settings.environment_id}|{candidate.seed.id}|{candidate.instruction}|{candidate.world.task_id}"
    result.tasks.append(
        Task(
            id=f"generated-{hashlib.sha256(key.encode()).hexdigest()[:16]}",
            instruction=candidate.instruction,
            initial_state=candidate.world.initial_state,
            criterion=candidate.criterion,
            metadata={"generated_from": candidate.seed.id, "world": {"task_id": candidate.world.task_id}},
            split=candidate.seed.split,
            parent_id=candidate.seed.id,
        )
    )


class Gate:
    """Validity: well-formed, grounded in a world that holds what is asked for, not yet fulfilled, and new."""

    def __init__(self, book: WorldBook, seeds: Iterable[Task], known: Iterable[str]) -> None:
        self._book = book
        self._known = {normal(text) for text in (*known, *(seed.instruction for seed in seeds))}

    def remember(self, instruction: str) -> None:
        self._known.add(normal(instruction))

    def fault(self, candidate: Candidate) -> str:
        """Why a candidate is refused; empty if it is admitted."""
        if not candidate.instruction.strip():
            return "empty instruction"
        if normal(candidate.instruction) in self._known:
            return "duplicate of a known instruction"
        if candidate.criterion is not None:
            try:
                validate_criterion(candidate.criterion)
            except InvalidInputError as error:
                return f"criterion not valid: {error.message}"
        elif candidate.seed.criterion is not None:
            return "no success criterion, although its seed has one"
        return self.ungrounded(candidate)

    def ungrounded(self, candidate: Candidate) -> str:
        """What the candidate's world lacks; empty if the task is possible there and not yet fulfilled."""
        world, book = candidate.world, self._book
        places = {class_of(place) for place in entities(world.initial_state)}
        named_places = named_classes(candidate.instruction, book.place_classes)
        criterion = " ".join(_texts(candidate.criterion))
        tools = named_classes(criterion, book.place_classes) if candidate.criterion else []
        missing = [cls for cls in (*named_places, *tools) if cls not in places]
        if missing:
            return f"the world {world.task_id} has no {missing[0]}"
        needs = required_things(candidate.instruction, book.thing_classes - book.place_classes)
        if not needs and not named_places:
            return "names nothing that is known"
        elsewhere = Counter(
            class_of(thing)
            for place, things in world.sheet.items()
            if class_of(place) not in named_places
            for thing in things
        )
        for cls, wanted in needs.items():
            if elsewhere[cls] < wanted:
                return f"the world {world.task_id} does not hold {wanted} {cls} away from its target"
        return ""


def template_of(instruction: str, classes: Iterable[str]) -> Template:
    """Abstract the class names of an instruction into slots, in order of appearance."""
    named = named_classes(instruction, classes)
    text = instruction.replace("{", "{{").replace("}", "}}")
    fillers: list[str] = []
    for cls in named:
        pattern = rf"(?<![\w-]){re.escape(cls)}(?![\w-])"
        if re.search(pattern, text, re.IGNORECASE):
            text = re.sub(pattern, f"{{{len(fillers)}}}", text, flags=re.IGNORECASE)
            fillers.append(cls)
    return Template(text, tuple(fillers))


def substitute(value: Any, changes: Mapping[str, str]) -> Any:
    """Replace whole class words in every text of a JSON value, all at once (so that two classes can swap)."""
    if not changes:
        return value
    names = "|".join(re.escape(name) for name in sorted(changes, key=len, reverse=True))
    # A letter after a backslash belongs to a pattern's escape (`\bmug`), not to the word.
    pattern = re.compile(rf"(?:(?<=\\[a-zA-Z])|(?<![\w-]))({names})(?![\w-])")

    def walk(node: Any) -> Any:
        if isinstance(node, str):
            return pattern.sub(lambda match: changes[match.group(1)], node)
        if isinstance(node, Mapping):
            return {key: walk(part) for key, part in node.items()}
        if isinstance(node, list | tuple):
            return [walk(part) for part in node]
        return node

    return walk(value)


def rewritten_criterion(seed: Task, changes: Mapping[str, str]) -> tuple[Mapping[str, Any] | None, str]:
    """The seed's criterion for other classes, and a fault if it does not speak of what changes."""
    if seed.criterion is None:
        return None, ""
    texts = " ".join(_texts(seed.criterion))
    silent = [old for old in changes if old not in texts]
    if silent:
        return seed.criterion, f"the seed's criterion does not name {silent[0]}"
    rewritten = substitute(seed.criterion, changes)
    fresh = set(changes.values())
    left = [
        old
        for old in changes
        if old not in fresh and re.search(rf"(?<![\w-]){old}(?![\w-])", " ".join(_texts(rewritten)))
    ]
    return rewritten, f"the criterion still names {left[0]}" if left else ""


def normal(text: str) -> str:
    """A text without case, punctuation and articles, for telling duplicates."""
    return " ".join(word for word in words(text) if word not in ("a", "an", "the", "some"))


def check_count(count: int) -> None:
    if not 0 < count <= MAX_COUNT:
        raise InvalidInputError(f"count is {count}.", remedy=f"Ask for 1 to {MAX_COUNT} tasks.")


def _propose(book: WorldBook, seed: Task, rng: random.Random) -> Iterator[Candidate]:
    """Candidates in a seeded order: every combination of recorded fillers, each with a world that may hold it."""
    classes = book.thing_classes | book.place_classes
    template = template_of(seed.instruction, classes)
    recorded = book.recorded(seed) or book.most_similar(seed)
    if not template.fillers or recorded is None:
        if recorded is not None:
            yield Candidate(seed, seed.instruction, seed.criterion, recorded, "its instruction names no known class")
        return
    same = [t.fillers for w in book.worlds if (t := template_of(w.instruction, classes)).text == template.text]
    slots = [sorted({fillers[slot] for fillers in same} | {old}) for slot, old in enumerate(template.fillers)]
    combinations = [c for c in itertools.product(*slots) if c != template.fillers and len(set(c)) == len(c)]
    rng.shuffle(combinations)
    for fillers in combinations:
        changes = {old: new for old, new in zip(template.fillers, fillers, strict=True) if old != new}
        criterion, fault = rewritten_criterion(seed, changes)
        instruction = template.filled(fillers)
        world = _holding_world(book, seed, instruction, criterion, rng) or recorded
        yield Candidate(seed, instruction, criterion, world, fault)


def _holding_world(
    book: WorldBook, seed: Task, instruction: str, criterion: Mapping[str, Any] | None, rng: random.Random
) -> World | None:
    """One of the recorded worlds in which the task is possible and not yet fulfilled."""
    gate = Gate(book, (), ())
    holding = [world for world in book.worlds if not gate.ungrounded(Candidate(seed, instruction, criterion, world))]
    return rng.choice(holding) if holding else None


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
