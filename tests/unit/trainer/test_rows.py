from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.inference.local_model import load_model
from dreamgym.trainer.branch_packing import pack_branches
from dreamgym.trainer.rows import plan_batches, plan_rows, stack_rows
from dreamgym.trainer.training_state import target_logprobs

lengths = st.lists(st.integers(1, 1500), max_size=150)


@settings(max_examples=40, deadline=None)
@given(sizes=lengths, seed=st.integers(0, 9))
def test_every_sequence_is_in_exactly_one_row_and_fits_it(sizes: list[int], seed: int) -> None:
    rows = plan_rows(sizes, random.Random(seed), 1024)
    assert sorted(index for members in rows for index in members) == list(range(len(sizes)))
    for members in rows:
        assert len(members) == 1 or sum(sizes[i] for i in members) <= 1024


@settings(max_examples=40, deadline=None)
@given(sizes=lengths, seed=st.integers(0, 9), budget=st.integers(256, 20_000))
def test_every_row_is_in_exactly_one_batch(sizes: list[int], seed: int, budget: int) -> None:
    batches = plan_batches(sizes, budget, random.Random(seed))
    assert sorted(index for rows in batches for members in rows for index in members) == list(range(len(sizes)))
    for rows in batches:
        assert rows
        assert len(rows) == 1 or sum(sizes[i] for members in rows for i in members) <= budget


@pytest.mark.parametrize("seed", range(5))
def test_little_of_a_batch_is_padding(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(40, 700) for _ in range(400)]
    batches = plan_batches(sizes, 8192, rng)
    laid = sum(len(rows) * max(sum(sizes[i] for i in members) for members in rows) for rows in batches)
    assert sum(sizes) / laid > 0.9


def test_the_same_seed_plans_the_same_batches() -> None:
    sizes = [random.Random(0).randint(1, 900) for _ in range(60)]
    assert plan_batches(sizes, 4096, random.Random(4)) == plan_batches(sizes, 4096, random.Random(4))
    assert plan_batches(sizes, 4096, random.Random(4)) != plan_batches(sizes, 4096, random.Random(5))


def test_a_sequences_logprobs_do_not_depend_on_its_neighbours(tiny_model: Path) -> None:
    model = load_model(tiny_model).eval()
    rng = random.Random(0)
    sequences = [
        pack_branches(
            [rng.randrange(256) for _ in range(size)],
            [(size // 2, [rng.randrange(256) for _ in range(5)], [0.0, 1.0, 1.0, 1.0, 1.0])],
            [0.0] + [1.0] * (size - 1),
        )
        for size in (7, 12, 20)
    ]
    together = stack_rows(sequences, [[2, 0], [1]], pad_id=0)
    assert together.ids_BT.shape == (2, 64), "37 tokens, and padding up to the next multiple of 64"
    with torch.no_grad():
        laid, _ = target_logprobs(model, together)
        apart = [target_logprobs(model, stack_rows(sequences, [[i]], pad_id=0))[0] for i in (2, 0, 1)]
    torch.testing.assert_close(laid, torch.cat(apart), atol=0.05, rtol=0.02)  # bf16 autocast
