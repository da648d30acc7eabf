"""Facts of the tracked world that refuse an action, whatever the model would say.

A small model grants impossible actions, and a policy learns to ask for them. So an action that contradicts the tracked world
(take a thing that lies elsewhere, put down what is not held) is answered with the environment's refusal without asking the
model, and a listing that contradicts it is asked for once more. No rule is taken on trust: `validated_rules` keeps those that
never refused an action which the recorded environment accepted, and of the others what holds for all but some first words.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from dreamgym.core.dream_prompt import Outcome
from dreamgym.core.episodes import Episode
from dreamgym.core.tracking import Move, Tracker, Verb, verb_of
from dreamgym.core.world_sheet import Sheet

MINIMUM_CHANCES = 20
"""Accepted actions that a rule could have refused and did not; n of them bound its error by 3 / n (95 %)."""
LISTING = "listing"


class Consistency(BaseModel):
    """Validated rules of one environment, as they are kept in the model card."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    rules: tuple[str, ...] = ()
    exceptions: dict[str, tuple[str, ...]] = {}
    """First words of actions about which a rule was wrong: it says nothing about those."""
    verbs: tuple[str, ...] = ()
    """First words of accepted actions, for the rule `command`."""


@dataclass(frozen=True)
class Rule:
    """`applies` says which moves the rule could refuse; `fault` is why it does, empty if it does not."""

    applies: Callable[[Move], bool]
    fault: Callable[[Tracker, Move], str]


def _acts_at_place(move: Move) -> bool:
    return bool(move.places) and move.verb not in (Verb.GO, Verb.CARRY)


def _elsewhere(tracker: Tracker, move: Move) -> str:
    return f"not at {move.places[-1]}" if move.places[-1] != tracker.here else ""


def _unknown_thing(tracker: Tracker, move: Move) -> str:
    unknown = [thing for thing in move.things if thing not in tracker.known]
    return f"no {unknown[0]}" if unknown else ""


def _unknown_place(tracker: Tracker, move: Move) -> str:
    return "" if move.places else "no such place"


def _already_there(tracker: Tracker, move: Move) -> str:
    return f"already at {tracker.here}" if move.places and move.places[-1] == tracker.here else ""


def _hands_full(tracker: Tracker, move: Move) -> str:
    return f"holding {tracker.holding[0]}" if tracker.holding else ""


def _out_of_sight(tracker: Tracker, move: Move) -> str:
    thing, here = move.things[0], tracker.here
    if thing in tracker.holding:
        return ""
    if here in tracker.closed:
        return f"{here} is closed"
    if here in tracker.contents:
        return "" if thing in tracker.contents[here] else f"{thing} is not here"
    elsewhere = [place for place, things in tracker.contents.items() if thing in things]
    return f"{thing} is at {elsewhere[0]}" if elsewhere else ""


def _not_held(tracker: Tracker, move: Move) -> str:
    return f"not holding {move.things[0]}" if move.things[0] not in tracker.holding else ""


def _not_shut(tracker: Tracker, move: Move) -> str:
    return "" if move.places[-1] in tracker.closed else f"{move.places[-1]} is not closed"


def _not_opened(tracker: Tracker, move: Move) -> str:
    return "" if move.places[-1] in tracker.opened else f"{move.places[-1]} is not open"


def _shut(tracker: Tracker, move: Move) -> str:
    return f"{tracker.here} is closed" if tracker.here in tracker.closed else ""


def _open_already(tracker: Tracker, move: Move) -> str:
    return f"{move.places[-1]} is open" if move.places[-1] in tracker.opened else ""


RULES: dict[str, Rule] = {
    "thing": Rule(lambda move: bool(move.things), _unknown_thing),
    "place": Rule(lambda move: move.verb is Verb.GO, _unknown_place),
    "already": Rule(lambda move: move.verb is Verb.GO, _already_there),
    "reach": Rule(_acts_at_place, _elsewhere),
    "hands": Rule(lambda move: move.verb is Verb.TAKE, _hands_full),
    "take": Rule(lambda move: move.verb is Verb.TAKE and bool(move.things), _out_of_sight),
    "look": Rule(lambda move: move.verb is Verb.LOOK and bool(move.things), _out_of_sight),
    "put": Rule(lambda move: move.verb is Verb.PUT and bool(move.things), _not_held),
    "into": Rule(lambda move: move.verb is Verb.PUT and bool(move.things), _shut),
    "tool": Rule(lambda move: move.verb is Verb.OTHER and bool(move.things and move.places), _not_held),
    "use": Rule(lambda move: move.verb is Verb.OTHER and bool(move.things) and not move.places, _out_of_sight),
    "open": Rule(lambda move: move.verb is Verb.OPEN and bool(move.places), _open_already),
    "close": Rule(lambda move: move.verb is Verb.CLOSE and bool(move.places), _shut),
    "closed": Rule(lambda move: move.verb is Verb.OPEN and bool(move.places), _not_shut),
    "opened": Rule(lambda move: move.verb is Verb.CLOSE and bool(move.places), _not_opened),
}


class TrackedWorld:
    """The world of one episode under the validated rules. Without rules or places it refuses nothing."""

    def __init__(
        self, initial_state: str, sheet: Mapping[str, Sequence[str]], consistency: Consistency, refusals: Sequence[str]
    ) -> None:
        self._tracker = Tracker(initial_state, sheet)
        self._consistency = consistency
        self._refusals = {" ".join(text.split()) for text in refusals}
        exceptions = consistency.exceptions
        self._rules = [(RULES[name], exceptions.get(name, ())) for name in consistency.rules if name in RULES]
        self._active = bool(consistency.rules and refusals and self._tracker.places)

    @property
    def places(self) -> tuple[str, ...]:
        """The places that the first state names; none if the world is not tracked."""
        return tuple(self._tracker.places) if self._active else ()

    @property
    def things(self) -> tuple[str, ...]:
        """Everything else that was named so far, sorted."""
        return tuple(sorted(self._tracker.known.difference(self._tracker.places))) if self._active else ()

    def candidates(self, first_word: str) -> tuple[str, ...]:
        """The places that an action with this first word can be about: all, or the one where the agent is (rule `reach`)."""
        near = "reach" in self._consistency.rules and verb_of(first_word) not in (Verb.GO, Verb.CARRY)
        return tuple(place for place in self.places if not near or place == self._tracker.here)

    def refuses(self, action: str) -> str:
        """Why the action is impossible; empty if nothing that is known stands against it."""
        if not self._active:
            return ""
        return self._fault(self._tracker.read(action))

    def refuses_named(self, action: str, names: Sequence[str]) -> str:
        """The same for an action whose entities are known, without reading them out of its text."""
        return self._fault(self._tracker.move(action, names)) if self._active else ""

    def _fault(self, move: Move) -> str:
        if self._consistency.verbs and move.word not in self._consistency.verbs:
            return "not a command"
        for rule, exceptions in self._rules:
            if move.word not in exceptions and rule.applies(move) and (fault := rule.fault(self._tracker, move)):
                return fault
        return ""

    def is_refusal(self, state: str) -> bool:
        """Whether a state says that the environment refused the action before it."""
        return " ".join(state.split()) in self._refusals

    def contradicts(self, action: str, outcome: Outcome) -> bool:
        """True if the model's state lists other things than the place holds."""
        if not self._active or LISTING not in self._consistency.rules:
            return False
        return _listing_differs(self._tracker, action, outcome.next_state)

    def follow(self, action: str, state: str) -> None:
        """Take over a turn; what a place holds stays as tracked even if a state claims otherwise."""
        if not self._active or self.is_refusal(state):
            return
        tracker = self._tracker
        truth = {place: list(things) for place, things in tracker.contents.items()}
        if tracker.accept(tracker.read(action), state) and tracker.here in truth:
            tracker.contents[tracker.here] = truth[tracker.here]


def validated_rules(episodes: Sequence[Episode], sheets: Sequence[Sheet]) -> Consistency:
    """The rules that never refused an accepted action of these episodes, with chances enough to do so.

    A rule that was wrong about actions with some first word is kept for the others, if their chances are enough.
    """
    chances: defaultdict[str, Counter[str]] = defaultdict(Counter)
    wrong: defaultdict[str, set[str]] = defaultdict(set)
    listings = differing = 0
    verbs: Counter[str] = Counter()
    for episode, sheet in zip(episodes, sheets, strict=True):
        tracker = Tracker(episode.task.initial_state, sheet)
        if not tracker.places:
            continue
        for step in episode.transitions:
            if not step.valid_action:
                continue
            move = tracker.read(step.action)
            verbs[move.word] += 1
            for name, rule in RULES.items():
                if rule.applies(move):
                    chances[name][move.word] += 1
                    if rule.fault(tracker, move):
                        wrong[name].add(move.word)
            differing += _listing_differs(tracker, step.action, step.next_state)
            listings += tracker.accept(move, step.next_state)
    right = {name: sum(n for word, n in chances[name].items() if word not in wrong[name]) for name in RULES}
    rules = [name for name in RULES if right[name] >= MINIMUM_CHANCES]
    if listings >= MINIMUM_CHANCES and not differing:
        rules.append(LISTING)
    exceptions = {name: tuple(sorted(wrong[name])) for name in rules if wrong[name]}
    known = tuple(sorted(verbs)) if sum(verbs.values()) >= MINIMUM_CHANCES * 10 else ()
    return Consistency(rules=tuple(rules), exceptions=exceptions, verbs=known if rules else ())


def _listing_differs(tracker: Tracker, action: str, state: str) -> bool:
    trial = tracker.copy()
    known = {place: set(things) for place, things in trial.contents.items()}
    return trial.accept(trial.read(action), state) and set(trial.contents[trial.here]) != known.get(
        trial.here, set(trial.contents[trial.here])
    )


def refusals_of(episodes: Sequence[Episode]) -> list[str]:
    """State texts by which the environment refuses an action, most frequent first (at most 16)."""
    counts: dict[str, int] = {}
    for episode in episodes:
        for t in episode.transitions:
            if not t.valid_action:
                counts[t.next_state] = counts.get(t.next_state, 0) + 1
    return sorted(counts, key=lambda text: -counts[text])[:16]
