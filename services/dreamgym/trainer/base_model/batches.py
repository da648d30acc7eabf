"""Fixed-shape training batches: several packed samples to a row, rows to a batch.

All rows have the same length, so the compiled step is compiled once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from dreamgym.trainer.base_model.drills import drill
from dreamgym.trainer.base_model.layout import EARLY_MIXTURE, Mixture, Piece, Sample, draw_sample
from dreamgym.trainer.branch_packing import PackedSequence, join_row, pack_branches, prediction_targets

PAD_ID = 0


@dataclass(frozen=True)
class Batch:
    """int32 and float32 tensors [B, T] of `B` rows, and the `[K]` flat positions on which the loss is taken."""

    ids: Tensor
    positions: Tensor
    branch: Tensor
    fork: Tensor
    document: Tensor
    chosen: Tensor
    targets: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return Batch(*(getattr(self, column.name).to(device) for column in fields(self)))


def encode_pieces(
    tokenizer: Tokenizer, pieces: list[Piece] | tuple[Piece, ...]
) -> tuple[list[int], list[float], list[int]]:
    """Token ids of the pieces, the loss weight of each token, and the token offset at which each piece starts."""
    ids: list[int] = []
    weights: list[float] = []
    starts: list[int] = []
    for piece, encoding in zip(pieces, tokenizer.encode_batch_fast([p.text for p in pieces]), strict=True):
        starts.append(len(ids))
        ids.extend(encoding.ids)
        weights.extend([piece.weight] * len(encoding.ids))
    starts.append(len(ids))
    return ids, weights, starts


def pack_sample(tokenizer: Tokenizer, sample: Sample, limit: int) -> PackedSequence:
    """Tokens of one sample, cut to `limit`: branches that do not fit are left out, then the main chain's end."""
    ids, weights, starts = encode_pieces(tokenizer, sample.main)
    ids, weights = ids[:limit], weights[:limit]
    branches: list[tuple[int, list[int], list[float]]] = []
    used = len(ids)
    for branch in sample.branches:
        branch_ids, branch_weights, _ = encode_pieces(tokenizer, branch.pieces)
        fork = starts[branch.fork]
        if fork <= len(ids) and used + len(branch_ids) <= limit:
            branches.append((fork, branch_ids, branch_weights))
            used += len(branch_ids)
    return pack_branches(ids, branches, weights)


def draw_rows(
    tokenizer: Tokenizer, seed: int, rows: int, length: int, drills: float, mixture: Mixture
) -> list[PackedSequence]:
    """`rows` rows of fresh samples, each filled with what fits from a small pool (longest first); a share `drills` of
    the samples are drills."""
    rng = random.Random(seed)
    pool: list[PackedSequence] = []
    result: list[PackedSequence] = []
    while len(result) < rows:
        while len(pool) < 24:
            sample = drill(rng) if rng.random() < drills else draw_sample(rng, mixture)
            pool.append(pack_sample(tokenizer, sample, length))
        pool.sort(key=len, reverse=True)
        room, row = length, []
        for sequence in list(pool):
            if len(sequence) <= room:
                row.append(sequence)
                pool.remove(sequence)
                room -= len(sequence)
        result.append(join_row(row, length, PAD_ID))
    return result


def make_batch(
    tokenizer: Tokenizer, seed: int, rows: int, length: int, drills: float = 0.0, mixture: Mixture = EARLY_MIXTURE
) -> Batch:
    """One batch by seed. Loss positions: all of weight 1, then a random part of the lightly weighted ones; K is fixed
    (45 % of the tokens), so the light ones are drawn at the rate of their weight instead of being multiplied by it."""
    packed = draw_rows(tokenizer, seed, rows, length, drills, mixture)
    columns = {
        name: torch.tensor(np.array([getattr(row, name) for row in packed], dtype=np.int32))
        for name in ("ids", "positions", "branch", "fork", "document")
    }
    pairs = [prediction_targets(row) for row in packed]
    targets = np.array([pair[0] for pair in pairs], dtype=np.int64).reshape(-1)
    weights = np.array([pair[1] for pair in pairs], dtype=np.float32).reshape(-1)
    generator = np.random.default_rng(seed)
    picked = np.flatnonzero(generator.random(weights.shape) < weights)
    count = int(0.45 * rows * length)
    generator.shuffle(picked)
    picked = picked[:count]
    chosen = np.zeros(count, dtype=np.int64)
    light = np.zeros(count, dtype=np.float32)
    chosen[: len(picked)], light[: len(picked)] = picked, 1.0
    return Batch(
        **columns,
        chosen=torch.from_numpy(chosen),
        targets=torch.from_numpy(targets[chosen]),
        weights=torch.from_numpy(light),
    )
