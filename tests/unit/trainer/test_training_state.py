from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dreamgym.inference.model_store import MARKER, ModelStore
from dreamgym.trainer.branch_packing import pack_branches
from dreamgym.trainer.checkpoints import StageCheckpoints
from dreamgym.trainer.rows import RowBatch, stack_rows
from dreamgym.trainer.training_state import TrainingState

MakeState = Callable[..., TrainingState]


def batch_of(seed: int) -> RowBatch:
    rng = random.Random(seed)
    sequences = [pack_branches([rng.randrange(256) for _ in range(16)], [], [0.0] + [1.0] * 15) for _ in range(2)]
    return stack_rows(sequences, [[0, 1]], pad_id=0)


def advance(state: TrainingState, steps: range) -> None:
    for number in steps:
        batch = batch_of(number)
        state.apply([lambda batch=batch: -state.target_logprobs(batch)[0].mean()])  # type: ignore[misc]


def weights(state: TrainingState) -> list[Tensor]:
    return [p.detach().clone() for p in state.model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_restored_run_ends_bit_for_bit_where_the_undisturbed_one_does(
    make_state: MakeState, tmp_path: Path, schedule: str
) -> None:
    undisturbed = make_state(total_steps=6, schedule=schedule)
    advance(undisturbed, range(6))

    interrupted = make_state(total_steps=6, schedule=schedule)
    advance(interrupted, range(3))
    interrupted.save(tmp_path, {"done": 3})
    resumed = make_state(total_steps=6, schedule=schedule)
    assert resumed.restore(tmp_path) == {"done": 3}
    assert resumed.step == 3
    advance(resumed, range(3, 6))
    assert equal(weights(resumed), weights(undisturbed))
    assert not equal(weights(resumed), weights(interrupted))


def test_training_lowers_the_loss(make_state: MakeState) -> None:
    state, batch = make_state(), batch_of(0)
    losses = [state.apply([lambda: -state.target_logprobs(batch)[0].mean()])[0] for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_changes_nothing_and_is_counted(make_state: MakeState, bad: float) -> None:
    state, batch = make_state(), batch_of(0)
    advance(state, range(1))
    before = weights(state)

    def good() -> Tensor:
        return -state.target_logprobs(batch)[0].mean()

    for losses in ([lambda: good() * bad], [good, lambda: good() * bad]):
        loss, norm = state.apply(losses)
        assert not math.isfinite(loss)
        assert not math.isfinite(norm)
    assert (state.step, state.skipped_steps) == (1, 2)
    assert equal(weights(state), before)
    advance(state, range(1, 2))
    assert (state.step, state.skipped_steps) == (2, 2)
    assert all(bool(p.isfinite().all()) for p in state.model.parameters())


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(make_state: MakeState) -> None:
    state = make_state()
    before = weights(state)
    parameter = next(state.model.parameters())
    # sqrt at 0: the value is finite, its slope is not.
    _, norm = state.apply([lambda: (parameter * 0).sqrt().sum()])
    assert not math.isfinite(norm)
    assert (state.step, state.skipped_steps) == (0, 1)
    assert equal(weights(state), before)


def test_micro_batches_add_up_to_one_step(make_state: MakeState) -> None:
    whole, parts = make_state(), make_state()
    one, other = batch_of(0), batch_of(1)
    whole.apply([lambda: -(whole.target_logprobs(one)[0].mean() + whole.target_logprobs(other)[0].mean()) / 2])
    parts.apply([lambda b=b: -parts.target_logprobs(b)[0].mean() / 2 for b in (one, other)])  # type: ignore[misc]
    assert whole.step == parts.step == 1
    for a, b in zip(weights(whole), weights(parts), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=0.05)


def test_the_learning_rate_warms_up_then_holds_or_decays_to_a_tenth(make_state: MakeState) -> None:
    constant, cosine = make_state(schedule="constant"), make_state(total_steps=10, schedule="cosine")
    for state, ends in ((constant, 0.01), (cosine, 0.001)):
        rates = []
        for step in (0, 1, 2, 6, 10, 99):
            state.step = step
            rates.append(state.learning_rate())
        assert rates[:3] == pytest.approx([0.005, 0.01, 0.01])
        assert rates[3:] == sorted(rates[3:], reverse=True)
        assert rates[4:] == pytest.approx([ends, ends])


def test_weights_of_another_shape_are_not_half_restored(make_state: MakeState, tmp_path: Path) -> None:
    state = make_state()
    advance(state, range(1))
    state.save(tmp_path, {})
    from safetensors.torch import load_file, save_file

    kept = load_file(tmp_path / "weights.safetensors")
    kept.pop("model.norm.weight")
    save_file(kept, tmp_path / "weights.safetensors")
    with pytest.raises(RuntimeError, match=r"model\.norm\.weight"):
        make_state().restore(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "objects")


def test_the_newest_whole_checkpoint_counts_even_beside_a_torn_newer_one(
    make_state: MakeState, store: ModelStore
) -> None:
    checkpoints, state = StageCheckpoints(store, "job", 2), make_state()
    assert checkpoints.newest() is None
    checkpoints.save(9, state, {"done": 9})
    location = checkpoints.save(10, state, {"done": 10})
    torn = store.root / checkpoints.prefix / "000011"
    torn.mkdir()
    (torn / "weights.safetensors").write_bytes(b"half")
    newest = checkpoints.newest()
    assert newest == store.published(location).path
    assert newest is not None
    assert make_state().restore(newest) == {"done": 10}
    (newest / MARKER).unlink()
    older = checkpoints.newest()
    assert older is not None
    assert make_state().restore(older) == {"done": 9}


def test_only_the_newest_checkpoints_are_kept_and_stages_do_not_touch_each_other(
    make_state: MakeState, store: ModelStore
) -> None:
    state = make_state()
    other = StageCheckpoints(store, "job", 1)
    other.save(1, state, {})
    checkpoints = StageCheckpoints(store, "job", 0, kept=2)
    for number in (1, 2, 3, 10):
        checkpoints.save(number, state, {})
    assert store.listed("checkpoints/job/0") == ["checkpoints/job/0/000003", "checkpoints/job/0/000010"]
    checkpoints.clear()
    assert checkpoints.newest() is None
    assert other.newest() is not None


def test_a_checkpoint_that_exists_is_kept_as_it_is(make_state: MakeState, store: ModelStore) -> None:
    checkpoints, state = StageCheckpoints(store, "job", 0), make_state()
    checkpoints.save(1, state, {"first": True})
    checkpoints.save(1, state, {"first": False})
    newest = checkpoints.newest()
    assert newest is not None
    assert make_state().restore(newest) == {"first": True}


def test_only_the_last_layers_move_if_asked(make_state: MakeState, tmp_path: Path) -> None:
    state = make_state(trained_layers=1)
    before = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    advance(state, range(2))
    moved = {name for name, p in state.model.named_parameters() if not torch.equal(p, before[name])}
    last = f"model.layers.{state.model.config.num_hidden_layers - 1}."
    assert moved == {name for name in before if name.startswith((last, "model.norm."))}

    state.save(tmp_path, {})
    restored = make_state(trained_layers=1)
    restored.restore(tmp_path)
    advance(state, range(2, 4))
    advance(restored, range(2, 4))
    assert equal(weights(state), weights(restored))
