"""Supervised training over packed sequences: the warm start of the policy, and the experience model's SFT."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from dreamgym.core.jobs import Optimizer
from dreamgym.trainer.action_space import ActionSpace
from dreamgym.trainer.branch_packing import PackedSequence
from dreamgym.trainer.checkpoints import StageCheckpoints
from dreamgym.trainer.rows import ROW_TOKENS, RowBatch, micro_batches, plan_batches, stack_rows
from dreamgym.trainer.stages.context import ModelReference, StageContext, Stopwatch
from dreamgym.trainer.training_state import TrainingState

CHECKPOINT_SHARE = 0.05
"""Largest share of its time that a run spends on checkpoints: those of a large model are written less often."""


@dataclass
class SupervisedRun:
    """What a run reached. `stopped_by` is empty, or says what ended it before its epochs were done."""

    state: TrainingState
    epochs_done: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    stopped_by: str = ""

    def summary(self) -> dict[str, Any]:
        tail = self.losses[-10:]
        return {
            "epochs_done": round(self.epochs_done, 3),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "loss_start": round(self.losses[0], 4) if self.losses else None,
            "loss_end": round(sum(tail) / len(tail), 4) if tail else None,
            "optimizer_steps": self.state.step,
            "skipped_steps": self.state.skipped_steps,
            "stopped_by": self.stopped_by,
        }


async def train_supervised(
    context: StageContext,
    model: ModelReference,
    sequences: Sequence[PackedSequence],
    optimizer: Optimizer,
    *,
    epochs: float,
    pad_id: int,
    time_limit_s: float | None = None,
    name: str = "loss",
    space: ActionSpace | None = None,
    row_tokens: int = ROW_TOKENS,
) -> SupervisedRun:
    """Minimise the weighted negative log-likelihood of the sequences' targets.

    Resumes from the stage's newest checkpoint. Batches depend only on (job seed, epoch), so a resumed run sees the same.
    """
    checkpoints = StageCheckpoints(
        context.store, context.session.job_id, context.stage, context.settings.checkpoints_kept
    )
    lengths = [len(sequence) for sequence in sequences]
    per_epoch = len(plan_batches(lengths, optimizer.tokens_per_batch, random.Random(0), row_tokens))
    total = max(1, math.ceil(epochs * per_epoch))
    state = TrainingState(model.path, optimizer, total)
    run = SupervisedRun(state)
    done = 0
    newest = checkpoints.newest()
    if newest is not None:
        progress = state.restore(newest)
        done, run.tokens, run.losses = progress["done"], progress["tokens"], progress["losses"]
        run.seconds = progress["seconds"]
        context.session.event("stage.resumed", stage=context.stage, batch=done, of=total)
    watch = Stopwatch(run.seconds)
    next_save = time.monotonic() + context.settings.checkpoint_interval_s
    while done < total:
        context.check()
        if watch.exceeded(time_limit_s):
            run.stopped_by = f"time limit of {time_limit_s:g} s"
            break
        epoch, place = divmod(done, per_epoch)
        rng = random.Random(f"{context.session.seed}:{context.stage}:{epoch}")
        plan = plan_batches(lengths, optimizer.tokens_per_batch, rng, row_tokens)
        parts = [
            stack_rows(sequences, rows, pad_id, space)
            for rows in micro_batches(plan[min(place, len(plan) - 1)], lengths)
        ]
        loss, norm = await context.in_thread(_step, state, parts)
        done += 1
        run.tokens += sum(part.tokens for part in parts)
        run.losses.append(loss)
        context.metric(name, done, loss)
        context.metric("gradient_norm", done, norm)
        context.progress(done / total)
        if (began := time.monotonic()) > next_save:
            progress = {"done": done, "tokens": run.tokens, "losses": run.losses[-200:], "seconds": watch.seconds}
            if run.losses and len(run.losses) > 200:
                progress["losses"] = [run.losses[0], *run.losses[-199:]]
            location = await context.in_thread(checkpoints.save, done, state, progress)
            context.session.event("checkpoint.published", stage=context.stage, location=location, batch=done)
            ended = time.monotonic()
            next_save = ended + max(context.settings.checkpoint_interval_s, (ended - began) / CHECKPOINT_SHARE)
    run.epochs_done = done / per_epoch
    run.seconds = watch.seconds
    return run


def _step(state: TrainingState, parts: Sequence[RowBatch]) -> tuple[float, float]:
    """One optimiser step: the weighted mean over all parts' targets, computed part by part."""
    total = sum(float(part.weights_BT.sum()) for part in parts)

    def loss_of(part: RowBatch) -> torch.Tensor:
        logprobs, _ = state.target_logprobs(part)
        weights = part.weights_BT[part.weights_BT > 0]
        return -(logprobs * weights).sum() / total

    return state.apply([partial(loss_of, part) for part in parts])
