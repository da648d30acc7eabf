"""The pools from which a procedural world draws its verbs, sentences and instructions.

None of the sentences is taken from an existing environment.
"""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, ...]] = {
    "goto": (
        "go to {p}",
        "walk to {p}",
        "move to {p}",
        "approach {p}",
        "head to {p}",
        "visit {p}",
        "go {p}",
        "step over to {p}",
    ),
    "open": ("open {p}", "open up {p}", "unseal {p}", "pull open {p}", "open the {p}"),
    "close": ("close {p}", "shut {p}", "close up {p}", "push shut {p}", "close the {p}"),
    "take": (
        "take {o} from {p}",
        "pick up {o} from {p}",
        "grab {o}",
        "get {o} from {p}",
        "take {o}",
        "lift {o} from {p}",
        "fetch {o} out of {p}",
        "pick up {o}",
        "collect {o} at {p}",
        "remove {o} from {p}",
    ),
    "put": (
        "put {o} in {p}",
        "move {o} to {p}",
        "place {o} on {p}",
        "put {o} in/on {p}",
        "drop {o} at {p}",
        "leave {o} in {p}",
        "set {o} on {p}",
        "put {o} on {p}",
        "put down {o}",
        "insert {o} into {p}",
        "store {o} in {p}",
    ),
    "transform": (
        "{v} {o} with {p}",
        "{v} {o} using {p}",
        "{v} {o} at {p}",
        "{v} {o} in {p}",
        "use {p} to {v} {o}",
        "{v} {o}",
    ),
    "use": ("use {o}", "turn on {o}", "switch on {o}", "toggle {o}", "activate {o}", "start {o}", "light {o}"),
    "look": ("look", "look around", "survey", "observe"),
    "inventory": ("inventory", "check hands", "items", "what do i hold"),
    "examine": ("examine {o}", "inspect {o}", "study {o}", "look at {o}", "check {o}", "view {o}"),
    "quit": ("give up", "stop", "quit", "resign"),
}
"""Command patterns by kind; `{p}` a place, `{o}` an object, `{v}` the verb of a transform."""

TRANSFORMS: tuple[tuple[str, str], ...] = (
    ("heat", "hot"),
    ("warm", "warm"),
    ("cool", "cool"),
    ("chill", "cold"),
    ("clean", "clean"),
    ("wash", "washed"),
    ("rinse", "rinsed"),
    ("dry", "dry"),
    ("polish", "polished"),
    ("paint", "painted"),
    ("freeze", "frozen"),
    ("toast", "toasted"),
    ("wrap", "wrapped"),
    ("label", "labelled"),
    ("sharpen", "sharp"),
    ("oil", "oiled"),
    ("fill", "full"),
    ("empty", "empty"),
    ("mark", "marked"),
    ("weigh", "weighed"),
    ("bless", "blessed"),
    ("repair", "repaired"),
    ("charge", "charged"),
    ("scan", "scanned"),
    ("soak", "wet"),
    ("dust", "dusted"),
)
"""Verb and the adjective of what it was done to."""

ROOM = (
    "You look about. There is {l}.",
    "Around you: {l}.",
    "You find yourself in a {r} with {l}.",
    "This {r} has {l}.",
    "In this {r} you notice {l}.",
    "Places here: {l}.",
    "You stand in a {r}. Nearby are {l}.",
    "You enter the {r}. It contains {l}.",
    "The {r} holds {l}.",
    "You wake up in a quiet {r}. You can reach {l}.",
    "Welcome. Within reach: {l}.",
)
ROOM_NAMES = (
    "kitchen",
    "workshop",
    "garden",
    "office",
    "barn",
    "shop",
    "hall",
    "cellar",
    "studio",
    "cabin",
    "room",
    "lab",
    "attic",
)
ARRIVE = (
    "You walk over to {p}.",
    "You are now at {p}.",
    "Now at {p}.",
    "You stand by {p}.",
    "You reach {p}.",
    "You go to the {p}.",
    "Here is {p}.",
    "You step up to the {p}.",
    "",
    "You have moved to {p}.",
    "You approach {p}.",
    "Location: {p}.",
)
CONTENTS = (
    "There is {l} here.",
    "You can see {l}.",
    "It holds {l}.",
    "Contents of {p}: {l}.",
    "In {p} there is {l}.",
    "The {p} has {l}.",
    "You notice {l} there.",
    "You find {l}.",
    "It contains {l}.",
    "Upon {p}: {l}.",
    "You observe {l} on the {p}.",
    "Items: {l}.",
    "Inside the {p} is {l}.",
    "The {p} carries {l}.",
    "At {p} you see {l}.",
)
CLOSED = (
    "It is shut.",
    "It is closed.",
    "But {p} is shut.",
    "Its door is closed.",
    "You see that {p} is closed.",
    "Closed.",
    "The {p} stands closed.",
    "The {p} is shut tight.",
    "Someone closed the {p}.",
)
OPENED = (
    "You open {p}.",
    "Now {p} is open.",
    "The {p} swings open.",
    "It opens.",
    "You pull the {p} open.",
    "Opened {p}.",
    "With a creak the {p} opens.",
)
CLOSE_DONE = (
    "You close {p}.",
    "Now {p} is closed again.",
    "It shuts.",
    "You shut the {p}.",
    "Closed {p}.",
    "The {p} is shut now.",
)
TAKEN = (
    "You take {o}.",
    "Taken.",
    "You now hold {o}.",
    "You have {o} in your hand.",
    "You get the {o} from {p}.",
    "Got {o}.",
    "You lift {o} off {p}.",
    "The {o} is yours now.",
    "You remove {o} from the {p}.",
    "Your hands now hold {o}.",
)
PUT_DONE = (
    "You put {o} down.",
    "Done.",
    "You put {o} in {p}.",
    "Now {o} is in {p}.",
    "You leave {o} at {p}.",
    "You set the {o} on the {p}.",
    "Placed {o}.",
    "The {o} rests in the {p}.",
    "You let go of {o}.",
    "You drop {o} at the {p}.",
)
TRANSFORMED = (
    "You {v} {o}.",
    "Now {o} is {a}.",
    "The {o} is {a} now.",
    "You {v} the {o} with {p}.",
    "Using {p} you {v} {o}.",
    "With the {p} you make {o} {a}.",
    "After a while {o} is {a}.",
    "You use the {p} to {v} the {o}.",
)
USED = (
    "The {o} is on.",
    "You switch on {o}.",
    "Now {o} glows.",
    "Click. The {o} is on.",
    "You start the {o}.",
    "The {o} hums to life.",
    "You activate {o}.",
)
FACING = ("You are at {p}.", "You stand before {p}.", "Still at {p}.", "You face {p}.", "In front of you: {p}.")
HOLDING = ("You hold {l}.", "You carry {l}.", "In your hands: {l}.", "You have {l} with you.", "Carried: {l}.")
EXAMINED = (
    "It is a plain {c}.",
    "The {o} looks ordinary.",
    "You see an ordinary {c}.",
    "Just {o}.",
    "A normal {c}, no more.",
)
EXAMINED_STATE = ("It is a {a} {c}.", "The {o} is {a}.", "You see a {a} {c}.", "The {c} looks {a}.", "A {a} {c}.")
REFUSED = (
    "That does not work.",
    "You cannot do that.",
    "No effect.",
    "That is impossible.",
    "Nothing changes.",
    "I do not understand.",
    "Invalid action.",
    "You try, but fail.",
    "Not possible here.",
    "Error: no such option.",
    "You can not do this now.",
    "The attempt fails.",
    "Hm?",
    "No.",
)
QUIT_DONE = ("You give up.", "The game ends.", "You stop here.", "It is over.")
TOOL_HINTS = ("You can {v} things at {p}.", "The {p} can {v} things.", "Use {p} to {v}.", "Objects get {a} at {p}.")
COMMAND_LEADS = ("Commands:", "You can:", "Actions:", "Allowed actions:", "Valid commands:")
TASKS: dict[str, tuple[str, ...]] = {
    "put": (
        "put a {c} in {t}.",
        "put some {c} on {t}.",
        "place a {c} in the {t}.",
        "bring a {c} to the {t}.",
        "move one {c} to {t}.",
        "get a {c} and leave it in {t}.",
        "there should be a {c} in the {t}.",
        "your goal: a {c} in {t}.",
        "carry some {c} over to a {t}.",
        "store a {c} in a {t}.",
        "find a {c} and set it on the {t}.",
    ),
    "transform": (
        "put a {a} {c} in {t}.",
        "{v} a {c} and put it in {t}.",
        "{v} some {c} and place it on the {t}.",
        "bring a {a} {c} to the {t}.",
        "get a {a} {c} into {t}.",
        "there should be a {a} {c} in the {t}.",
        "leave a {a} {c} at a {t}.",
        "first {v} a {c}, then bring it to {t}.",
        "move a {a} {c} to {t}.",
    ),
    "two": (
        "put two {c} in {t}.",
        "place two {c} on the {t}.",
        "bring two {c} to {t}.",
        "find two {c} and leave them in {t}.",
        "there should be two {c} in the {t}.",
        "carry two {c} over to a {t}.",
        "gather two {c} at {t}.",
    ),
    "use": (
        "hold a {c} and use the {t}.",
        "use the {t} while holding a {c}.",
        "take a {c} to the {t} and switch it on.",
        "inspect a {c} by the {t}.",
        "view the {c} with a {t} on.",
        "turn on the {t} with a {c} in hand.",
        "study the {c} in the light of the {t}.",
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

SENTENCES: dict[str, tuple[str, ...]] = {
    "room": ROOM,
    "room_name": ROOM_NAMES,
    "arrive": ARRIVE,
    "contents": CONTENTS,
    "closed": CLOSED,
    "opened": OPENED,
    "close_done": CLOSE_DONE,
    "taken": TAKEN,
    "put_done": PUT_DONE,
    "transformed": TRANSFORMED,
    "used": USED,
    "facing": FACING,
    "holding": HOLDING,
    "examined": EXAMINED,
    "examined_state": EXAMINED_STATE,
    "refused": REFUSED,
    "quit_done": QUIT_DONE,
    "tool_hint": TOOL_HINTS,
    "command_lead": COMMAND_LEADS,
}
"""The pools of observation sentences, by the name under which a wording keeps its choice."""
