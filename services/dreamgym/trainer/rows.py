"""Lays sequences into rows of one length, so that little is padding, and stacks rows to tensors.

Shapes: B rows, T tokens a row.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dreamgym.trainer.action_space import ActionSpace, allowed_tokens
from dreamgym.trainer.branch_packing import PackedSequence, join_row, prediction_targets, tree_mask

ROW_TOKENS = 256
"""Attention is dense within a row, also between episodes that do not see each other: with rows of 1,024 tokens a policy
update took 1.4 times as long as with 512, and with 512 that of a model of 108M parameters 1.25 times as long as with 256.
A longer sequence has a row of its own length."""
TREE_ROW_TOKENS = 512
"""The same for the experience model's sequences, which are longer: with 256 it saw 30 % fewer tokens in the same time."""
LENGTH_MULTIPLE = 64
"""Rows are padded to a multiple of this. Each new shape makes the matrix library build and keep kernels for it: with every
length of its own an update took a quarter more time and its memory grew from step to step."""
MICRO_BATCH_TOKENS = 4096
"""Tokens of one forward and backward pass; an optimiser step adds up several. Bounds memory, not the result."""


@dataclass
class RowBatch:
    """One optimiser step's rows. `weights_BT` is the loss weight of predicting `targets_BT` (0: not predicted)."""

    ids_BT: Tensor
    positions_BT: Tensor
    mask_BTT: Tensor
    targets_BT: Tensor
    weights_BT: Tensor
    members: list[list[int]]
    """For each row, which sequences (by index into the data set) lie in it, in order."""
    allowed_NV: Tensor | None = None
    """For each predicted target, which tokens it was chosen from; None: any."""

    @property
    def tokens(self) -> int:
        return int(self.ids_BT.numel())


def plan_rows(lengths: Sequence[int], rng: random.Random, row_tokens: int = ROW_TOKENS) -> list[list[int]]:
    """Distribute sequences over rows (first fit over a shuffled order, longest first within a window).

    A sequence longer than `row_tokens` gets a row of its own length.
    """
    order = list(range(len(lengths)))
    rng.shuffle(order)
    rows: list[list[int]] = []
    window = 64
    for start in range(0, len(order), window):
        room: list[tuple[int, list[int]]] = []
        for index in sorted(order[start : start + window], key=lambda i: -lengths[i]):
            for place, (left, members) in enumerate(room):
                if lengths[index] <= left:
                    members.append(index)
                    room[place] = (left - lengths[index], members)
                    break
            else:
                room.append((max(0, row_tokens - lengths[index]), [index]))
        rows += [members for _, members in room]
    rng.shuffle(rows)
    return rows


def plan_batches(
    lengths: Sequence[int], tokens_per_batch: int, rng: random.Random, row_tokens: int = ROW_TOKENS
) -> list[list[list[int]]]:
    """Group rows of similar length into optimiser steps of about `tokens_per_batch` tokens, in random order."""
    rows = sorted(plan_rows(lengths, rng, row_tokens), key=lambda members: sum(lengths[i] for i in members))
    batches: list[list[list[int]]] = []
    room = 0
    for members in rows:
        size = sum(lengths[i] for i in members)
        if size > room or not batches:
            batches.append([])
            room = tokens_per_batch
        batches[-1].append(members)
        room -= size
    rng.shuffle(batches)
    return batches


def micro_batches(rows: Sequence[list[int]], lengths: Sequence[int]) -> list[list[list[int]]]:
    """Split an optimiser step's rows so that one forward pass holds at most `MICRO_BATCH_TOKENS`."""
    parts: list[list[list[int]]] = [[]]
    size = 0
    for members in rows:
        length = sum(lengths[i] for i in members)
        if parts[-1] and size + length > MICRO_BATCH_TOKENS:
            parts.append([])
            size = 0
        parts[-1].append(list(members))
        size += length
    return parts


def stack_rows(
    sequences: Sequence[PackedSequence],
    rows: Sequence[Sequence[int]],
    pad_id: int,
    space: ActionSpace | None = None,
) -> RowBatch:
    """Tensors of the planned rows; with an action space, targets are predicted among what it allowed."""
    longest = max(sum(len(sequences[i]) for i in members) for members in rows)
    length = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    joined = [join_row([sequences[i] for i in members], length, pad_id) for members in rows]
    columns = [
        torch.tensor([getattr(row, name) for row in joined]) for name in ("positions", "branch", "fork", "document")
    ]
    targets, weights = zip(*(prediction_targets(row) for row in joined), strict=True)
    mask = tree_mask(columns[0], columns[1], columns[2], columns[3])
    # A padding token must attend to something, or its softmax is not a number.
    mask |= torch.eye(length, dtype=torch.bool)
    return RowBatch(
        ids_BT=torch.tensor([row.ids for row in joined]),
        positions_BT=columns[0],
        mask_BTT=mask,
        targets_BT=torch.tensor(targets),
        weights_BT=torch.tensor(weights),
        members=[list(members) for members in rows],
        allowed_NV=None
        if space is None
        else torch.cat([allowed_tokens(sequences[i], space) for members in rows for i in members]),
    )
