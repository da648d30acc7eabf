"""Success criteria: small programs over what the agent saw and did, evaluated without running any code of the customer.

A criterion is a JSON object with exactly one operator:

    {"all": [c, ...]}  {"any": [c, ...]}  {"not": c}
    {"contains": {"over": WHERE, "text": "..."}}
    {"regex": {"over": WHERE, "pattern": "..."}}
    {"number": {"over": WHERE, "pattern": "price: (\\d+)", "op": "<=", "value": 40}}

WHERE is `state` (the newest state), `action` (the newest action) or `transcript`, all turns as `> action\\nstate\\n`.
Patterns use the `regex` module's syntax, and a back-reference ties two mentions to one entity. Every match has a time limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import regex

from dreamgym.core.errors import InvalidInputError

MATCH_TIMEOUT_S = 0.25
MAX_DEPTH = 8
MAX_NODES = 64
MAX_PATTERN_CHARS = 2000
_PLACES = ("state", "action", "transcript")
_COMPARISONS = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
}


@dataclass(frozen=True)
class Evidence:
    """What a criterion may look at: the turns since the start as (action, resulting state)."""

    turns: Sequence[tuple[str, str]]

    def text(self, place: str) -> str:
        if place == "transcript":
            return "".join(f"> {action}\n{state}\n" for action, state in self.turns)
        if not self.turns:
            return ""
        action, state = self.turns[-1]
        return state if place == "state" else action


def validate_criterion(criterion: Any, *, field: str = "criterion") -> None:
    """Raise InvalidInputError naming the path of the first fault in a criterion."""
    _validate(criterion, field, depth=0, budget=[MAX_NODES])


def is_met(criterion: Mapping[str, Any], evidence: Evidence) -> bool:
    """Evaluate a validated criterion.

    Raises InvalidInputError if a pattern needs longer than `MATCH_TIMEOUT_S`: a criterion that cannot be decided in
    time is a fault of the criterion, not a failure of the agent.
    """
    ((operator, body),) = criterion.items()
    if operator == "all":
        return all(is_met(part, evidence) for part in body)
    if operator == "any":
        return any(is_met(part, evidence) for part in body)
    if operator == "not":
        return not is_met(body, evidence)
    text = evidence.text(body["over"])
    if operator == "contains":
        return str(body["text"]).casefold() in text.casefold()
    match = _search(body["pattern"], text)
    if operator == "regex":
        return match is not None
    if match is None:
        return False
    try:
        number = float(match.group(1).replace(",", ""))
    except ValueError:
        return False
    return bool(_COMPARISONS[body["op"]](number, float(body["value"])))


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> Any:
    return regex.compile(pattern, flags=regex.DOTALL | regex.IGNORECASE)


def _search(pattern: str, text: str) -> Any:
    try:
        return _compile(pattern).search(text, timeout=MATCH_TIMEOUT_S)
    except TimeoutError as error:
        raise InvalidInputError(
            f"The criterion's pattern {pattern!r} took longer than {MATCH_TIMEOUT_S} s on a text of {len(text)} characters.",
            remedy="Write the pattern without nested repetition, or split it into several with `all`.",
        ) from error


def _validate(node: Any, path: str, *, depth: int, budget: list[int]) -> None:
    budget[0] -= 1
    if budget[0] < 0 or depth > MAX_DEPTH:
        raise InvalidInputError(f"{path}: more than {MAX_NODES} parts or {MAX_DEPTH} levels.", remedy="Simplify it.")
    if not isinstance(node, Mapping) or len(node) != 1:
        raise InvalidInputError(
            f"{path} must be an object with exactly one operator.",
            remedy="Operators: all, any, not, contains, regex, number.",
        )
    ((operator, body),) = node.items()
    if operator in ("all", "any"):
        if not isinstance(body, Sequence) or isinstance(body, str) or not body:
            raise InvalidInputError(f"{path}.{operator} must be a list that is not empty.")
        for index, part in enumerate(body):
            _validate(part, f"{path}.{operator}[{index}]", depth=depth + 1, budget=budget)
    elif operator == "not":
        _validate(body, f"{path}.not", depth=depth + 1, budget=budget)
    elif operator in ("contains", "regex", "number"):
        _validate_leaf(operator, body, f"{path}.{operator}")
    else:
        raise InvalidInputError(
            f"{path}: unknown operator {operator!r}.", remedy="Operators: all, any, not, contains, regex, number."
        )


def _validate_leaf(operator: str, body: Any, path: str) -> None:
    wanted = {"contains": {"over", "text"}, "regex": {"over", "pattern"}, "number": {"over", "pattern", "op", "value"}}
    if not isinstance(body, Mapping) or set(body) != wanted[operator]:
        raise InvalidInputError(f"{path} must have exactly the fields {sorted(wanted[operator])}.")
    if body["over"] not in _PLACES:
        raise InvalidInputError(f"{path}.over is {body['over']!r}.", remedy=f"Use one of {', '.join(_PLACES)}.")
    if operator == "contains":
        if not isinstance(body["text"], str) or not body["text"]:
            raise InvalidInputError(f"{path}.text must be text that is not empty.")
        return
    pattern = body["pattern"]
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidInputError(f"{path}.pattern must be text of at most {MAX_PATTERN_CHARS} characters.")
    try:
        compiled = _compile(pattern)
    except regex.error as error:
        raise InvalidInputError(f"{path}.pattern is not a regular expression: {error}.") from error
    if operator == "number":
        if compiled.groups < 1:
            raise InvalidInputError(f"{path}.pattern needs a group around the number, for example 'price: (\\d+)'.")
        if not isinstance(body["op"], str) or body["op"] not in _COMPARISONS:
            raise InvalidInputError(f"{path}.op is {body['op']!r}.", remedy=f"Use one of {', '.join(_COMPARISONS)}.")
        if (
            isinstance(body["value"], bool)
            or not isinstance(body["value"], int | float)
            or not _is_finite(body["value"])
        ):
            raise InvalidInputError(f"{path}.value must be a number.")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False
