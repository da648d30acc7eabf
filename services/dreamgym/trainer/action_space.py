"""What a policy's actions may consist of, token by token; sampler and trainer apply the same rule.

Shapes: n predicted targets of a sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dreamgym.core.action_choices import ActionRules, next_tokens
from dreamgym.trainer.branch_packing import PackedSequence

Allowed = tuple[int, ...]
"""The tokens that one was chosen from; empty: every token seen before, and the format's."""


@dataclass(frozen=True)
class ActionSpace:
    """`tokens` may stand in any action beside those read before (`core.action_vocabulary`); `size` is the model's V.

    With `rules`, an action is one of the choices that the episode leaves open (`core.action_choices`), where there are any.
    """

    tokens: frozenset[int]
    size: int
    rules: ActionRules | None = None


def allowed_along(choices: Sequence[Sequence[int]], ids: Sequence[int]) -> list[Allowed]:
    """For each token of an action, those it was chosen from among the choices; empty ones if it is none of them."""
    if tuple(ids) not in {tuple(choice) for choice in choices}:
        return [()] * len(ids)
    return [next_tokens(choices, ids[:place]) for place in range(len(ids))]


def forced(allowed: Allowed) -> bool:
    """True if there was no choice: such a token says nothing about the policy and carries no loss."""
    return len(allowed) == 1


def allowed_tokens(sequence: PackedSequence, space: ActionSpace) -> Tensor:
    """Bool [n, V] for the predicted targets of a plain sequence: what each was chosen from, always with the target."""
    targets = [place for place in range(1, len(sequence)) if sequence.loss_mask[place] > 0]
    choices = sequence.allowed or [()] * len(targets)
    if len(choices) != len(targets):
        raise ValueError(f"{len(choices)} sets of choices for {len(targets)} predicted targets")
    allowed = torch.zeros(len(targets), space.size, dtype=torch.bool)
    seen = torch.zeros(space.size, dtype=torch.bool)
    seen[list(space.tokens)] = True
    read = 0
    for row, place in enumerate(targets):
        seen[sequence.ids[read:place]] = True
        read = place
        if choices[row]:
            allowed[row, list(choices[row])] = True
        else:
            allowed[row] = seen
        allowed[row, sequence.ids[place]] = True
    return allowed
