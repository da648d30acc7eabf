"""The built-in annotator: a short line of scratch work for every recorded step, from what the texts show.

For an accepted action the line holds the facts that the next state is made of (where the agent is now, what it holds, what
the place holds after earlier moves); for a refused one it says which fact stands against it. No domain is built in: see
`tracking`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dreamgym.core.consistency import Consistency, validated_rules
from dreamgym.core.episodes import Episode
from dreamgym.core.tracking import Move, Tracker, Verb
from dreamgym.core.world_sheet import Sheet, class_of, entities, from_hindsight, merge, render

NAME = "builtin"
SHOWN_WORDS = 10


@dataclass(frozen=True)
class AnnotatedEpisode:
    """One trace per step, and the sheet of the episode's world."""

    reasoning: tuple[str, ...]
    world_sheet: str


def annotate(episodes: Sequence[Episode]) -> list[AnnotatedEpisode]:
    """Annotate episodes together: those with the same task and initial state share what any of them reveals."""
    sheets = joint_sheets(episodes)
    verbs = accepted_verbs(episodes)
    return [
        AnnotatedEpisode(tuple(reasons(episode, sheet, verbs)), render(sheet))
        for episode, sheet in zip(episodes, sheets, strict=True)
    ]


def consistency_of(episodes: Sequence[Episode]) -> Consistency:
    """The rules of `consistency` that hold for every accepted action of these episodes."""
    return validated_rules(episodes, joint_sheets(episodes))


def joint_sheets(episodes: Sequence[Episode]) -> list[Sheet]:
    """The hindsight sheet of each episode's world, merged over the episodes of the same task and initial state."""
    revealed: dict[tuple[str, str], list[Sheet]] = {}
    for episode in episodes:
        revealed.setdefault(_world_key(episode), []).append(
            from_hindsight(
                episode.task.initial_state,
                [(step.action, step.next_state) for step in episode.transitions],
                [step.valid_action for step in episode.transitions],
            )
        )
    merged = {key: merge(sheets, entities(key[1])) for key, sheets in revealed.items()}
    return [merged[_world_key(episode)] for episode in episodes]


def accepted_verbs(episodes: Iterable[Episode]) -> frozenset[str]:
    """First words of accepted actions: what this environment takes for a command."""
    return frozenset(
        step.action.split()[0].lower()
        for episode in episodes
        for step in episode.transitions
        if step.valid_action and step.action.split()
    )


def reasons(episode: Episode, sheet: Mapping[str, Sequence[str]], verbs: frozenset[str] = frozenset()) -> list[str]:
    """One line per step of an episode."""
    tracker = Tracker(episode.task.initial_state, sheet)
    verbs = verbs or accepted_verbs([episode])
    lines = []
    for step in episode.transitions:
        move = tracker.read(step.action)
        if not step.valid_action:
            lines.append(f"impossible: {obstacle(tracker, move, verbs)}.")
            continue
        lists = tracker.accept(move, step.next_state)
        line = situation(tracker, lists) if tracker.places else f"valid; {news(step.state, step.next_state)}."
        lines.append(f"{line} task done." if step.success else line)
    return lines


def situation(tracker: Tracker, lists: bool) -> str:
    """Facts after an accepted action. `lists`: the next state tells what the place holds."""
    here = tracker.here
    parts = ["valid"]
    if here:
        parts.append(f"at {here}")
    parts.append(f"holding {', '.join(tracker.holding) or 'nothing'}")
    if lists:
        parts.append(f"sheet: {here} has {', '.join(tracker.contents[here]) or 'nothing'}")
    elif here in tracker.closed:
        parts.append(f"{here} is closed")
    return "; ".join(parts) + "."


def obstacle(tracker: Tracker, move: Move, verbs: frozenset[str]) -> str:
    """The fact that most likely stands against a refused action."""
    if move.word not in verbs:
        return "not a command"
    unknown = [name for name in (*move.places, *move.things) if name not in tracker.known]
    if unknown:
        return f"no {unknown[0]}"
    check = _OBSTACLES.get(move.verb, _elsewhere)
    return check(tracker, move) or "not a command"


def news(before: str, after: str) -> str:
    """What a state without places shows that the one before did not, in a few words."""
    old = set(before.splitlines())
    fresh = [line for line in after.splitlines() if line.strip() and line not in old]
    return "shows " + " ".join(" ".join(fresh).split()[:SHOWN_WORDS]) if fresh else "nothing changes"


def _go(tracker: Tracker, move: Move) -> str:
    if not move.places:
        return "no such place"
    return f"already at {tracker.here}" if move.places[-1] == tracker.here else f"cannot reach {move.places[-1]}"


def _not_at(tracker: Tracker, move: Move) -> str:
    elsewhere = move.places and move.places[-1] != tracker.here
    return f"not at {move.places[-1]}" if elsewhere else ""


def _take(tracker: Tracker, move: Move) -> str:
    why = _not_at(tracker, move)
    if why or not move.things:
        return why
    if tracker.holding:
        return f"holding {tracker.holding[0]}"
    if tracker.here in tracker.closed:
        return f"{tracker.here} is closed"
    missing = move.things[0] not in tracker.contents.get(tracker.here, ())
    return f"{move.things[0]} is not here" if missing else f"{move.things[0]} is fixed"


def _put(tracker: Tracker, move: Move) -> str:
    if move.things and move.things[0] not in tracker.holding:
        return f"not holding {move.things[0]}"
    why = _not_at(tracker, move)
    if why:
        return why
    if tracker.here in tracker.closed:
        return f"{tracker.here} is closed"
    return f"{class_of(move.things[0])} does not fit {tracker.here}" if move.things and tracker.here else ""


def _door(tracker: Tracker, move: Move) -> str:
    why = _not_at(tracker, move)
    if why or not move.places:
        return why
    place = move.places[-1]
    if move.verb is Verb.OPEN and place in tracker.opened:
        return f"{place} is open"
    if move.verb is Verb.CLOSE and place in tracker.closed:
        return f"{place} is closed"
    return f"{place} has no door"


def _elsewhere(tracker: Tracker, move: Move) -> str:
    """Any other verb: its tool or target is elsewhere, or its thing is neither held nor in sight."""
    thing = move.things[0] if move.things else ""
    if thing and move.places and thing not in tracker.holding:
        return f"not holding {thing}"
    why = _not_at(tracker, move)
    if why:
        return why
    here = tracker.here
    visible = here not in tracker.closed and thing in tracker.contents.get(here, ())
    if thing and thing not in tracker.holding and not visible:
        return f"{thing} is not here"
    if thing and move.places:
        return f"{move.places[-1]} does not {move.word} {class_of(thing)}"
    return ""


_OBSTACLES = {
    Verb.GO: _go,
    Verb.TAKE: _take,
    Verb.PUT: _put,
    Verb.OPEN: _door,
    Verb.CLOSE: _door,
}


def _world_key(episode: Episode) -> tuple[str, str]:
    return episode.task.id, " ".join(episode.task.initial_state.split())
