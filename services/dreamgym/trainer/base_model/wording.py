"""How one procedural world speaks: the verbs of its commands and the sentences of its observations.

Every world draws its own wording, so what a model can carry over from world to world is the mechanics and the
habit of copying the form it is shown, not sentences. None of the sentences is taken from an existing environment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from dreamgym.trainer.base_model.nouns import NOUNS

COMMANDS: dict[str, tuple[str, ...]] = {
    "goto": ("go to {p}", "walk to {p}", "move to {p}", "approach {p}", "head to {p}", "visit {p}", "go {p}", "step over to {p}"),
    "open": ("open {p}", "open up {p}", "unseal {p}", "pull open {p}", "open the {p}"),
    "close": ("close {p}", "shut {p}", "close up {p}", "push shut {p}", "close the {p}"),
    "take": (
        "take {o} from {p}", "pick up {o} from {p}", "grab {o}", "get {o} from {p}", "take {o}", "lift {o} from {p}",
        "fetch {o} out of {p}", "pick up {o}", "collect {o} at {p}", "remove {o} from {p}",
    ),
    "put": (
        "put {o} in {p}", "move {o} to {p}", "place {o} on {p}", "put {o} in/on {p}", "drop {o} at {p}", "leave {o} in {p}",
        "set {o} on {p}", "put {o} on {p}", "put down {o}", "insert {o} into {p}", "store {o} in {p}",
    ),
    "transform": ("{v} {o} with {p}", "{v} {o} using {p}", "{v} {o} at {p}", "{v} {o} in {p}", "use {p} to {v} {o}", "{v} {o}"),
    "use": ("use {o}", "turn on {o}", "switch on {o}", "toggle {o}", "activate {o}", "start {o}", "light {o}"),
    "look": ("look", "look around", "survey", "observe"),
    "inventory": ("inventory", "check hands", "items", "what do i hold"),
    "examine": ("examine {o}", "inspect {o}", "study {o}", "look at {o}", "check {o}", "view {o}"),
    "quit": ("give up", "stop", "quit", "resign"),
}
"""Command patterns by kind; `{p}` a place, `{o}` an object, `{v}` the verb of a transform."""

TRANSFORMS: tuple[tuple[str, str], ...] = (
    ("heat", "hot"), ("warm", "warm"), ("cool", "cool"), ("chill", "cold"), ("clean", "clean"), ("wash", "washed"),
    ("rinse", "rinsed"), ("dry", "dry"), ("polish", "polished"), ("paint", "painted"), ("freeze", "frozen"),
    ("toast", "toasted"), ("wrap", "wrapped"), ("label", "labelled"), ("sharpen", "sharp"), ("oil", "oiled"),
    ("fill", "full"), ("empty", "empty"), ("mark", "marked"), ("weigh", "weighed"), ("bless", "blessed"),
    ("repair", "repaired"), ("charge", "charged"), ("scan", "scanned"), ("soak", "wet"), ("dust", "dusted"),
)
"""Verb and the adjective of what it was done to."""

ROOM = (
    "You look about. There is {l}.", "Around you: {l}.", "You find yourself in a {r} with {l}.", "This {r} has {l}.",
    "In this {r} you notice {l}.", "Places here: {l}.", "You stand in a {r}. Nearby are {l}.", "You enter the {r}. It contains {l}.",
    "The {r} holds {l}.", "You wake up in a quiet {r}. You can reach {l}.", "Welcome. Within reach: {l}.",
)
ROOM_NAMES = ("kitchen", "workshop", "garden", "office", "barn", "shop", "hall", "cellar", "studio", "cabin", "room", "lab", "attic")
ARRIVE = (
    "You walk over to {p}.", "You are now at {p}.", "Now at {p}.", "You stand by {p}.", "You reach {p}.", "You go to the {p}.",
    "Here is {p}.", "You step up to the {p}.", "", "You have moved to {p}.", "You approach {p}.", "Location: {p}.",
)
CONTENTS = (
    "There is {l} here.", "You can see {l}.", "It holds {l}.", "Contents of {p}: {l}.", "In {p} there is {l}.", "The {p} has {l}.",
    "You notice {l} there.", "You find {l}.", "It contains {l}.", "Upon {p}: {l}.", "You observe {l} on the {p}.", "Items: {l}.",
    "Inside the {p} is {l}.", "The {p} carries {l}.", "At {p} you see {l}.",
)
CLOSED = (
    "It is shut.", "It is closed.", "But {p} is shut.", "Its door is closed.", "You see that {p} is closed.", "Closed.", "The {p} stands closed.",
    "The {p} is shut tight.", "Someone closed the {p}.",
)
OPENED = (
    "You open {p}.", "Now {p} is open.", "The {p} swings open.", "It opens.", "You pull the {p} open.", "Opened {p}.", "With a creak the {p} opens.",
)
CLOSE_DONE = ("You close {p}.", "Now {p} is closed again.", "It shuts.", "You shut the {p}.", "Closed {p}.", "The {p} is shut now.")
TAKEN = (
    "You take {o}.", "Taken.", "You now hold {o}.", "You have {o} in your hand.", "You get the {o} from {p}.", "Got {o}.", "You lift {o} off {p}.",
    "The {o} is yours now.", "You remove {o} from the {p}.", "Your hands now hold {o}.",
)
PUT_DONE = (
    "You put {o} down.", "Done.", "You put {o} in {p}.", "Now {o} is in {p}.", "You leave {o} at {p}.", "You set the {o} on the {p}.", "Placed {o}.",
    "The {o} rests in the {p}.", "You let go of {o}.", "You drop {o} at the {p}.",
)
TRANSFORMED = (
    "You {v} {o}.", "Now {o} is {a}.", "The {o} is {a} now.", "You {v} the {o} with {p}.", "Using {p} you {v} {o}.", "With the {p} you make {o} {a}.",
    "After a while {o} is {a}.", "You use the {p} to {v} the {o}.",
)
USED = (
    "The {o} is on.", "You switch on {o}.", "Now {o} glows.", "Click. The {o} is on.", "You start the {o}.", "The {o} hums to life.", "You activate {o}.",
)
FACING = ("You are at {p}.", "You stand before {p}.", "Still at {p}.", "You face {p}.", "In front of you: {p}.")
HOLDING = ("You hold {l}.", "You carry {l}.", "In your hands: {l}.", "You have {l} with you.", "Carried: {l}.")
EXAMINED = ("It is a plain {c}.", "The {o} looks ordinary.", "You see an ordinary {c}.", "Just {o}.", "A normal {c}, no more.")
EXAMINED_STATE = ("It is a {a} {c}.", "The {o} is {a}.", "You see a {a} {c}.", "The {c} looks {a}.", "A {a} {c}.")
REFUSED = (
    "That does not work.", "You cannot do that.", "No effect.", "That is impossible.", "Nothing changes.", "I do not understand.", "Invalid action.",
    "You try, but fail.", "Not possible here.", "Error: no such option.", "You can not do this now.", "The attempt fails.", "Hm?", "No.",
)
QUIT_DONE = ("You give up.", "The game ends.", "You stop here.", "It is over.")
TOOL_HINTS = ("You can {v} things at {p}.", "The {p} can {v} things.", "Use {p} to {v}.", "Objects get {a} at {p}.")
COMMAND_LEADS = ("Commands:", "You can:", "Actions:", "Allowed actions:", "Valid commands:")
TASKS: dict[str, tuple[str, ...]] = {
    "put": (
        "put a {c} in {t}.", "put some {c} on {t}.", "place a {c} in the {t}.", "bring a {c} to the {t}.", "move one {c} to {t}.", "get a {c} and leave it in {t}.",
        "there should be a {c} in the {t}.", "your goal: a {c} in {t}.", "carry some {c} over to a {t}.", "store a {c} in a {t}.", "find a {c} and set it on the {t}.",
    ),
    "transform": (
        "put a {a} {c} in {t}.", "{v} a {c} and put it in {t}.", "{v} some {c} and place it on the {t}.", "bring a {a} {c} to the {t}.", "get a {a} {c} into {t}.",
        "there should be a {a} {c} in the {t}.", "leave a {a} {c} at a {t}.", "first {v} a {c}, then bring it to {t}.", "move a {a} {c} to {t}.",
    ),
    "two": (
        "put two {c} in {t}.", "place two {c} on the {t}.", "bring two {c} to {t}.", "find two {c} and leave them in {t}.", "there should be two {c} in the {t}.",
        "carry two {c} over to a {t}.", "gather two {c} at {t}.",
    ),
    "use": (
        "hold a {c} and use the {t}.", "use the {t} while holding a {c}.", "take a {c} to the {t} and switch it on.", "inspect a {c} by the {t}.", "view the {c} with a {t} on.",
        "turn on the {t} with a {c} in hand.", "study the {c} in the light of the {t}.",
    ),
}
"""Instructions by task family; `{c}` object class, `{t}` target (place or device) class, `{v}`/`{a}` the transform."""

REASONS: dict[str, tuple[str, ...]] = {
    "valid": ("valid", "valid", "valid", "possible", "ok", "works"),
    "bad": ("impossible:", "impossible:", "impossible:", "invalid:", "fails:", "no:"),
    "at": ("at {p}", "at {p}", "at {p}", "agent at {p}", "place {p}"),
    "holding": ("holding {h}", "holding {h}", "holding {h}", "hands: {h}", "has {h}"),
    "has": ("sheet: {p} has {l}.", "sheet: {p} has {l}.", "sheet: {p} has {l}.", "{p} has {l}.", "now {p}: {l}."),
    "shut": ("{p} is closed.", "{p} is closed.", "{p} shut."),
    "unknown": ("sheet: {p} unknown.", "sheet: {p} unknown.", "{p} not on the sheet."),
    "goal": ("task done.", "task done.", "goal met."),
}
"""Pieces of the experience model's reasoning line; the first variant (the product's own form) is the likeliest."""

LIST_JOINS = ((", ", ", and "), (", ", " and "), (", ", ", "), (" and ", " and "), ("; ", "; "))


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


SENTENCES: dict[str, tuple[str, ...]] = {
    "room": ROOM, "room_name": ROOM_NAMES, "arrive": ARRIVE, "contents": CONTENTS, "closed": CLOSED, "opened": OPENED,
    "close_done": CLOSE_DONE, "taken": TAKEN, "put_done": PUT_DONE, "transformed": TRANSFORMED, "used": USED, "facing": FACING,
    "holding": HOLDING, "examined": EXAMINED, "examined_state": EXAMINED_STATE, "refused": REFUSED, "quit_done": QUIT_DONE,
    "tool_hint": TOOL_HINTS, "command_lead": COMMAND_LEADS,
}
"""The pools of observation sentences, by the name under which a wording keeps its choice."""


def draw_wording(rng: random.Random) -> Wording:
    """Draw the wording of one environment: verbs, sentences, nouns and their roles."""
    nouns = rng.sample(NOUNS, 24)
    place_classes, object_classes, device_classes = tuple(nouns[:8]), tuple(nouns[8:20]), tuple(nouns[20:22])
    tools = rng.sample(place_classes, 3)
    transforms = tuple(Transform(v, a, tool) for (v, a), tool in zip(rng.sample(TRANSFORMS, 3), tools, strict=True))
    return Wording(
        commands={kind: rng.choice(pool) for kind, pool in COMMANDS.items()},
        sentences={name: rng.choice(pool) for name, pool in SENTENCES.items()},
        reasons={name: rng.choice(pool) for name, pool in REASONS.items()},
        transforms=transforms,
        place_classes=place_classes,
        object_classes=object_classes,
        device_classes=device_classes,
        closed_classes=frozenset(c for c in place_classes if rng.random() < 0.4),
        article=rng.choice(("a ", "a ", "", "the ", "one ")),
        joins=rng.choice(LIST_JOINS),
        nothing=rng.choice(("nothing", "nothing", "no items", "nothing at all", "empty space")),
        tells_commands=rng.random() < 0.5,
        tells_tools=rng.random() < 0.8,
        tells_closed=rng.random() < 0.3,
        newest_first=rng.random() < 0.25,
        tidy_numbers=rng.random() < 0.85,
    )
