"""Acting as choosing: the actions that the texts of an episode leave open, among which the policy picks one.

A small policy spends most of its failures on actions that cannot be meant: names that are not here, doors that are open
already. The action format says which forms an action has, the texts which names there are, and the validated rules
(`core.consistency`) which of the combinations contradict what was read. What remains is a list, made in the same way from
the same texts in the dream and in reality. It is a proposal, not a promise: the environment may still refuse an action.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic import BaseModel, ConfigDict

from dreamgym.core.consistency import Consistency, TrackedWorld, validated_rules
from dreamgym.core.episodes import Episode
from dreamgym.core.world_sheet import class_of

MOST_CHOICES = 256
"""An episode that offers more is not worth listing; the policy then writes freely."""
MOST_TRIED = 4096
"""Combinations of names tried for one form; more take longer than the policy does."""
_SLOT = re.compile(r"\(([^)]*)\)")
_PLACES = frozenset({"receptacle", "place", "location", "container", "room"})
_THINGS = frozenset({"object", "thing", "item"})


@dataclass(frozen=True)
class ActionForm:
    """One form of an action: the words around its slots, and for each slot the words that say what fits there."""

    words: tuple[str, ...]
    slots: tuple[tuple[str, ...], ...]

    @property
    def first_word(self) -> str:
        return (self.words[0].split() or [""])[0]

    def filled(self, names: Sequence[str]) -> str:
        """The action with its slots filled in order."""
        parts = [self.words[0]]
        for name, words in zip(names, self.words[1:], strict=True):
            parts += [name, words]
        return "".join(parts).strip()


def parse_forms(action_format: str) -> tuple[ActionForm, ...]:
    """The forms of an action format such as `One line: go to (receptacle) | take (object) from (receptacle) | look`.

    Forms stand after the last colon, separated by `|`; a slot is a word in parentheses, or several joined by `or`. A
    format without slots lists no forms.
    """
    listed = action_format.rpartition(":")[2]
    if not _SLOT.search(listed):
        return ()
    forms = []
    for form in filter(None, (part.strip(" .\n`") for part in listed.split("|"))):
        slots = tuple(tuple(s.strip().lower() for s in slot.split(" or ")) for slot in _SLOT.findall(form))
        forms.append(ActionForm(tuple(_SLOT.split(form)[::2]), slots))
    return tuple(forms)


class ActionRules(BaseModel):
    """What a policy that chooses keeps in its card: the format, and what the seeds confirmed of it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    action_format: str
    consistency: Consistency
    refusals: tuple[str, ...]


def learn_rules(action_format: str, episodes: Sequence[Episode], refusals: Sequence[str]) -> ActionRules | None:
    """Rules validated on recorded episodes as read without any private knowledge; None if choosing is not possible.

    It needs forms with slots, refusals to recognise, and rules that no accepted action contradicts.
    """
    consistency = validated_rules(episodes, [{} for _ in episodes])
    if not parse_forms(action_format) or not refusals or not consistency.rules:
        return None
    return ActionRules(action_format=action_format, consistency=consistency, refusals=tuple(refusals))


class ActionChooser:
    """The open actions of one episode, as far as its texts tell. Feed it every turn with `follow`."""

    def __init__(self, rules: ActionRules, initial_state: str) -> None:
        self._forms = parse_forms(rules.action_format)
        self._world = TrackedWorld(initial_state, {}, rules.consistency, rules.refusals)
        self._refused: set[str] = set()
        """Actions refused since one was last accepted: the same question would have the same answer."""

    def choices(self) -> list[str]:
        """The open actions, sorted; empty if nothing is known to choose from, or too much."""
        things = self._world.things
        found: dict[str, None] = {}
        for form in self._forms:
            places = self._world.candidates(form.first_word)
            fitting = [
                [*(p for p in places if _fits(slot, p, True)), *(t for t in things if _fits(slot, t, False))]
                for slot in form.slots
            ]
            if math.prod(map(len, fitting)) > MOST_TRIED:
                return []
            for names in itertools.product(*fitting):
                action = form.filled(names)
                if not self._world.refuses_named(action, names):
                    found[action] = None
            if len(found) > MOST_CHOICES:
                return []
        return sorted(found.keys() - self._refused) if self._world.places else []

    def follow(self, action: str, state: str) -> None:
        """Read a turn."""
        if self._world.is_refusal(state):
            self._refused.add(" ".join(action.split()))
        else:
            self._refused.clear()
        self._world.follow(action, state)


@lru_cache(maxsize=65_536)
def _fits(slot: tuple[str, ...], name: str, is_place: bool) -> bool:
    """Whether a name fits a slot: by its role, or by a class that is the slot's word or ends with it (`lamp`)."""
    kind = class_of(name)
    for word in slot:
        if word in _PLACES:
            if is_place:
                return True
        elif word in _THINGS:
            if not is_place:
                return True
        elif kind.endswith(word):
            return True
    return False


def token_choices(choices: Sequence[str], say: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The choices as the policy writes them, in token ids."""
    return tuple(tuple(say(choice)) for choice in choices)


def next_tokens(choices: Sequence[Sequence[int]], begun: Sequence[int]) -> tuple[int, ...]:
    """The tokens with which the choices that begin like `begun` go on, sorted; none if a choice is complete."""
    place, start = len(begun), list(begun)
    return tuple(sorted({c[place] for c in choices if len(c) > place and list(c[:place]) == start}))
