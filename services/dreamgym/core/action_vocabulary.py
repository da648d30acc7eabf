"""What an action may consist of: anything (`open`), words read so far (`seen`), or one of a list (`choices`).

A small policy invents names; a name that stands nowhere in the episode can never be right. With `seen`, the sampler chooses
only among tokens that occur in the episode so far or in the environment's action format. Sampler and trainer apply the same
rule, so log-probabilities agree. Tokens of the current action come from the allowed set themselves, so the rule needs no
notion of turns. The list is made in `action_choices`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dreamgym.core.policy_prompt import END_OF_ACTION

OPEN, SEEN, CHOICES = "open", "seen", "choices"
_WORD = re.compile(r"[A-Za-z]+")


def format_tokens(action_format: str, encode: Callable[[str], Sequence[int]]) -> frozenset[int]:
    """Token ids of the action format's words and of the end of an action."""
    tokens = set(encode(END_OF_ACTION))
    for word in _WORD.findall(action_format):
        tokens.update(encode(f" {word}"))
    return frozenset(tokens)
