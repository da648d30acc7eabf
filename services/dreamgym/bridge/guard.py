"""Which actions may reach a real environment: allow, deny and dry-run rules, each with its reason.

The rules see the action with its white space collapsed and without regard to case, because adapters accept such
variants too. A rule that cannot be decided in time denies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import regex
from pydantic import BaseModel, ConfigDict, field_validator

_MATCH_TIMEOUT_S = 0.5


class Verdict(StrEnum):
    """What becomes of an action."""

    SENT = "sent"  # goes to the real environment
    DENIED = "denied"  # is refused; the environment does not see it
    DRY_RUN = "dry_run"  # is accepted, but the environment does not see it


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and, where it is not SENT, why."""

    verdict: Verdict
    reason: str = ""


class Rule(BaseModel):
    """A regular expression and the reason given to whoever runs into it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: str
    reason: str = ""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            regex.compile(pattern)
        except regex.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


class ActionPolicy(BaseModel):
    """Rules of one environment or adapter.

    deny: an action in which one of these is found is refused.
    allow: if there are any, an action must match one of these as a whole, or it is refused.
    dry_run: an action in which one of these is found is only pretended.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    dry_run: tuple[Rule, ...] = ()


class Guard:
    """Judges the actions of one episode by all policies that hold for it."""

    def __init__(self, policies: Sequence[ActionPolicy] = (), *, longest: int = 2000) -> None:
        self._policies = tuple(policies)
        self._longest = longest

    @classmethod
    def for_episode(
        cls, policies: Mapping[str, ActionPolicy], *, environment_id: str, adapter: str, longest: int
    ) -> Guard:
        """The guard of an episode: the policies for every environment, for its adapter and for itself."""
        names = dict.fromkeys(("*", adapter, environment_id))
        return cls([policies[name] for name in names if name in policies], longest=longest)

    def judge(self, action: str) -> Decision:
        """Deny goes before dry-run, dry-run before sending."""
        text = " ".join(action.split())
        if len(text) > self._longest:
            return Decision(Verdict.DENIED, f"It is longer than {self._longest} characters.")
        try:
            return self._judge(text)
        except TimeoutError:
            return Decision(Verdict.DENIED, "A rule for this environment takes too long on it.")

    def _judge(self, text: str) -> Decision:
        for policy in self._policies:
            for rule in policy.deny:
                if _found(rule, text):
                    return Decision(Verdict.DENIED, rule.reason or "It is on the deny list of this environment.")
            if policy.allow and not any(_matches(rule, text) for rule in policy.allow):
                return Decision(Verdict.DENIED, "It is not on the allow list of this environment.")
        for policy in self._policies:
            for rule in policy.dry_run:
                if _found(rule, text):
                    return Decision(Verdict.DRY_RUN, rule.reason or "Such actions are only tried dry here.")
        return Decision(Verdict.SENT)


def _found(rule: Rule, text: str) -> bool:
    return regex.search(rule.pattern, text, regex.IGNORECASE, timeout=_MATCH_TIMEOUT_S) is not None


def _matches(rule: Rule, text: str) -> bool:
    return regex.fullmatch(rule.pattern, text, regex.IGNORECASE, timeout=_MATCH_TIMEOUT_S) is not None
