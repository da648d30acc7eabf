"""One sequence for an episode and all the questions asked about its steps (tree attention).

The experience model answers a question at step t from the episode up to t. Packed one by one, the episode would be
encoded again for each question; packed as a tree it is encoded once: a branch token sees the main chain before its
fork and its own branch, and its position continues from the fork. The logits equal those of the plain sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

MAIN = 0
PADDING_DOCUMENT = -1


@dataclass
class PackedSequence:
    """Parallel lists, one entry per token.

    `positions` are rotary positions; `branch` is 0 on the main chain and 1, 2, ... on the branches; `fork` is the
    number of main-chain tokens that the token's branch sees (0 on the main chain, which sees its own past);
    `loss_mask` is the weight in the loss of *predicting* this token; `document` separates episodes sharing a row.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    branch: list[int] = field(default_factory=list)
    fork: list[int] = field(default_factory=list)
    loss_mask: list[float] = field(default_factory=list)
    document: list[int] = field(default_factory=list)
    allowed: list[tuple[int, ...]] = field(default_factory=list)
    """Not parallel: for each token with a loss, in order, those it was chosen from (`action_space`); none kept: empty."""

    def __len__(self) -> int:
        return len(self.ids)


def pack_branches(
    main_ids: Sequence[int],
    branches: Iterable[tuple[int, Sequence[int], Sequence[float]]],
    main_loss_mask: Sequence[float] | None = None,
) -> PackedSequence:
    """Pack a main chain and its branches `(fork_position, ids, loss_mask)` into one sequence.

    A branch sees `main_ids[:fork_position]`. Its first token is never predicted (the last main token before the fork
    already has a successor), so it should belong to the question.

    Raises:
        ValueError: a fork lies outside the main chain, or a mask has another length than its ids.
    """
    if main_loss_mask is not None and len(main_loss_mask) != len(main_ids):
        raise ValueError(f"main_loss_mask has {len(main_loss_mask)} entries for {len(main_ids)} tokens")
    packed = PackedSequence(
        ids=list(main_ids),
        positions=list(range(len(main_ids))),
        branch=[MAIN] * len(main_ids),
        fork=[0] * len(main_ids),
        loss_mask=list(main_loss_mask) if main_loss_mask is not None else [0.0] * len(main_ids),
        document=[0] * len(main_ids),
    )
    for number, (fork, ids, loss_mask) in enumerate(branches, start=1):
        if not 0 <= fork <= len(main_ids):
            raise ValueError(f"branch {number} forks at {fork}, outside a main chain of {len(main_ids)} tokens")
        if len(ids) != len(loss_mask):
            raise ValueError(f"branch {number} has {len(ids)} tokens and a loss mask of {len(loss_mask)}")
        packed.ids.extend(ids)
        packed.positions.extend(range(fork, fork + len(ids)))
        packed.branch.extend([number] * len(ids))
        packed.fork.extend([fork] * len(ids))
        packed.loss_mask.extend(float(weight) for weight in loss_mask)
        packed.document.extend([0] * len(ids))
    return packed


def join_row(sequences: Sequence[PackedSequence], length: int, pad_id: int) -> PackedSequence:
    """Lay several packed sequences side by side in one row of `length` tokens; they do not see each other.

    Raises:
        ValueError: they do not fit.
    """
    row = PackedSequence()
    for document, sequence in enumerate(sequences):
        row.ids.extend(sequence.ids)
        row.positions.extend(sequence.positions)
        row.branch.extend(sequence.branch)
        row.fork.extend(sequence.fork)
        row.loss_mask.extend(sequence.loss_mask)
        row.document.extend([document] * len(sequence))
    missing = length - len(row)
    if missing < 0:
        raise ValueError(f"{len(row)} tokens do not fit a row of {length}")
    row.ids.extend([pad_id] * missing)
    row.positions.extend([0] * missing)
    row.branch.extend([MAIN] * missing)
    row.fork.extend([0] * missing)
    row.loss_mask.extend([0.0] * missing)
    row.document.extend([PADDING_DOCUMENT] * missing)
    return row


def tree_mask(positions: Tensor, branch: Tensor, fork: Tensor, document: Tensor) -> Tensor:
    """Who may attend to whom: bool [..., T, T] (query, key) from int tensors [..., T]."""
    length = positions.shape[-1]
    past = torch.ones(length, length, dtype=torch.bool, device=positions.device).tril()
    same_document = document.unsqueeze(-1) == document.unsqueeze(-2)
    same_branch = branch.unsqueeze(-1) == branch.unsqueeze(-2)
    before_fork = (branch == MAIN).unsqueeze(-2) & (positions.unsqueeze(-2) < fork.unsqueeze(-1))
    return past & same_document & (same_branch | before_fork)


def attention_mask(packed: PackedSequence) -> Tensor:
    """The bool [T, T] mask (query, key; True = attend) of one packed sequence or row."""
    columns = (packed.positions, packed.branch, packed.fork, packed.document)
    positions, branch, fork, document = (torch.tensor(column) for column in columns)
    return tree_mask(positions, branch, fork, document)


def prediction_targets(packed: PackedSequence) -> tuple[list[int], list[float]]:
    """For each token the id that follows it in its own branch and the weight of predicting that (0: no successor)."""
    targets, weights = [0] * len(packed), [0.0] * len(packed)
    for here in range(len(packed) - 1):
        there = here + 1
        if packed.branch[here] == packed.branch[there] and packed.document[here] == packed.document[there]:
            targets[here], weights[here] = packed.ids[there], packed.loss_mask[there]
    return targets, weights
