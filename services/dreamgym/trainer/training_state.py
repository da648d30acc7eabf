"""A model in training: weights, optimiser, learning-rate schedule, and a checkpoint of all that decides the next step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dreamgym.core.jobs import Optimizer
from dreamgym.inference.local_model import EXCLUDED_LOGIT, hidden_states, load_model
from dreamgym.trainer.rows import RowBatch


class TrainingState:
    """fp32 weights under bf16 autocast, AdamW, gradient clipping, NaN guards.

    `total_steps` is what the cosine schedule runs over; constant schedules ignore it.
    """

    def __init__(self, model_path: Path, optimizer: Optimizer, total_steps: int) -> None:
        self.model = load_model(model_path, torch.float32).train()
        self.settings = optimizer
        self.total_steps = max(1, total_steps)
        self.step = 0
        self.skipped_steps = 0
        if optimizer.trained_layers is not None:
            _freeze_below(self.model, optimizer.trained_layers)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        decayed = [p for p in trained if p.ndim >= 2]
        plain = [p for p in trained if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": optimizer.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=optimizer.learning_rate,
            betas=(0.9, 0.95),
        )

    def learning_rate(self) -> float:
        """Linear warm-up, then constant, or cosine to a tenth."""
        peak, warmup = self.settings.learning_rate, self.settings.warmup_steps
        if self.step < warmup:
            return peak * (self.step + 1) / warmup
        if self.settings.schedule == "constant":
            return peak
        progress = min(1.0, (self.step - warmup) / max(1, self.total_steps - warmup))
        return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))

    def target_logprobs(self, batch: RowBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probability [N] and entropy [N] of each predicted target (weight > 0), row by row."""
        return target_logprobs(self.model, batch, temperature)

    def apply(self, losses: Sequence[Callable[[], Tensor]]) -> tuple[float, float]:
        """One optimiser step on the sum of `losses` (micro-batches, each scaled already); answers (loss, gradient norm).

        A loss or gradient that is not finite changes nothing: the step is skipped and counted in `skipped_steps`.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in losses:
            value = part()
            total += float(value.detach())
            if not math.isfinite(total):
                self.skipped_steps += 1
                return total, math.nan
            value.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_gradient_norm))
        if not math.isfinite(norm):
            self.skipped_steps += 1
            return total, norm
        self.optimizer.step()
        self.step += 1
        return total, norm

    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        """Write weights, optimiser moments and progress into a folder (published by the caller)."""
        save_file(_cpu_state(self.model), folder / "weights.safetensors")
        moments: dict[str, Tensor] = {}
        for number, state in self.optimizer.state_dict()["state"].items():
            for name, tensor in state.items():
                moments[f"{number}.{name}"] = tensor.contiguous()
        save_file(moments, folder / "optimizer.safetensors")
        record = {"step": self.step, "skipped_steps": self.skipped_steps, "progress": progress}
        (folder / "progress.json").write_bytes(orjson.dumps(record))

    def restore(self, folder: Path) -> dict[str, Any]:
        """Read what `save` wrote; answers the progress."""
        weights = load_file(folder / "weights.safetensors")
        if getattr(self.model.config, "tie_word_embeddings", False):  # left out by `save`: it is the embedding
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        self.model.load_state_dict(weights)
        saved = self.optimizer.state_dict()
        saved["state"] = {}
        for name, tensor in load_file(folder / "optimizer.safetensors").items():
            number, _, field = name.partition(".")
            saved["state"].setdefault(int(number), {})[field] = tensor
        self.optimizer.load_state_dict(saved)
        record = orjson.loads((folder / "progress.json").read_bytes())
        self.step, self.skipped_steps = record["step"], record["skipped_steps"]
        progress: dict[str, Any] = record["progress"]
        return progress


def _freeze_below(model: Any, layers: int) -> None:
    """Leave the last `layers` decoder layers and the final norm to be trained; embeddings and the others stay."""
    for parameter in model.parameters():
        parameter.requires_grad = False
    for part in (*model.model.layers[-layers:], model.model.norm):
        for parameter in part.parameters():
            parameter.requires_grad = True


def target_logprobs(model: Any, batch: RowBatch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability [N] and entropy [N] of each predicted target of a batch, under bf16 autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = hidden_states(model, batch.ids_BT, batch.positions_BT, batch.mask_BTT)
        chosen = batch.weights_BT > 0
        logits_NV = model.lm_head(hidden[chosen]).float()
    if batch.allowed_NV is not None:
        logits_NV = logits_NV.masked_fill(~batch.allowed_NV, EXCLUDED_LOGIT)
    logprobs_NV = torch.log_softmax(logits_NV / (temperature or 1.0), dim=-1)
    taken = logprobs_NV.gather(1, batch.targets_BT[chosen][:, None])[:, 0]
    entropy = -(logprobs_NV.detach().exp() * logprobs_NV.detach()).sum(-1)
    return taken, entropy


def _cpu_state(model: Any) -> dict[str, Tensor]:
    tied = getattr(model.config, "tie_word_embeddings", False)
    return {
        name: tensor.detach().contiguous()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
