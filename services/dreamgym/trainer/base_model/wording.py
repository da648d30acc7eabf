"""How one procedural world speaks: the verbs of its commands and the sentences of its observations.

Every world draws its own wording, so what a model can carry over from world to world is the mechanics and the
habit of copying the form it is shown, not sentences.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from dreamgym.trainer.base_model.nouns import NOUNS
from dreamgym.trainer.base_model.phrases import COMMANDS, LIST_JOINS, REASONS, SENTENCES, TRANSFORMS


@dataclass(frozen=True)
class Transform:
    """Something that can be done to a held object at a tool: `{verb} {object}` makes it `{adjective}`."""

    verb: str
    adjective: str
    tool: str


@dataclass(frozen=True)
class Wording:
    """The language and the nouns shared by all worlds of one kind (a world of worlds: one 'environment')."""

    commands: dict[str, str]
    sentences: dict[str, str]
    reasons: dict[str, str]
    transforms: tuple[Transform, ...]
    place_classes: tuple[str, ...]
    object_classes: tuple[str, ...]
    device_classes: tuple[str, ...]
    closed_classes: frozenset[str]
    article: str
    joins: tuple[str, str]
    nothing: str
    tells_commands: bool
    tells_tools: bool
    tells_closed: bool
    newest_first: bool
    tidy_numbers: bool

    def listing(self, names: list[str]) -> str:
        """`names` as this wording enumerates them, or its word for none."""
        if not names:
            return self.nothing
        items = [self.article + name for name in names]
        if len(items) == 1:
            return items[0]
        return self.joins[0].join(items[:-1]) + self.joins[1] + items[-1]


def draw_wording(rng: random.Random) -> Wording:
    """Draw the wording of one environment: verbs, sentences, nouns and their roles."""
    nouns = rng.sample(NOUNS, 24)
    place_classes, object_classes, device_classes = tuple(nouns[:8]), tuple(nouns[8:20]), tuple(nouns[20:22])
    tools = rng.sample(place_classes, 3)
    transforms = tuple(Transform(v, a, tool) for (v, a), tool in zip(rng.sample(TRANSFORMS, 3), tools, strict=True))
    return Wording(
        commands={kind: rng.choice(pool) for kind, pool in COMMANDS.items()},
        sentences={name: rng.choice(pool) for name, pool in SENTENCES.items()},
        reasons={name: pool[0] if rng.random() < 0.6 else rng.choice(pool) for name, pool in REASONS.items()},
        transforms=transforms,
        place_classes=place_classes,
        object_classes=object_classes,
        device_classes=device_classes,
        closed_classes=frozenset(c for c in place_classes if rng.random() < 0.4),
        article=rng.choice(("a ", "a ", "", "the ", "one ")),
        joins=rng.choice(LIST_JOINS),
        nothing=rng.choice(("nothing", "nothing", "no items", "nothing at all", "empty space")),
        tells_commands=rng.random() < 0.85,
        tells_tools=rng.random() < 0.8,
        tells_closed=rng.random() < 0.3,
        newest_first=rng.random() < 0.25,
        tidy_numbers=rng.random() < 0.85,
    )
