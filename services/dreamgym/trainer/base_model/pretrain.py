"""Pretrain the base model from nothing on procedural text worlds: `python -m dreamgym.trainer.base_model.pretrain`.

On a CPU one thread trains and one light process draws the batches; on a GPU (`--device cuda`) take more rows, a longer
schedule and as many `--workers` as there are cores, since drawing is then what bounds the speed. fp32 weights under bf16
autocast; the compiled step has one fixed shape. Hidden matrices are stepped by Muon, embeddings and norms by AdamW.
Checkpoints appear atomically under `OUT/latest`, in the usual Llama format in bf16.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import AttentionInterface

from dreamgym.trainer.base_model.batches import Batch, make_batch
from dreamgym.trainer.base_model.evaluate import action_accuracy, held_out_samples, transition_accuracy
from dreamgym.trainer.base_model.layout import EARLY_MIXTURE, LATE_MIXTURE
from dreamgym.trainer.base_model.model import build_model
from dreamgym.trainer.base_model.tokenizer import build_tokenizer, save_tokenizer
from dreamgym.trainer.branch_packing import tree_mask


@dataclass(frozen=True)
class Settings:
    """One pretraining run. Learning rates are peaks; `rows * length` tokens a step; with `minutes` above 0 the schedule
    follows the clock, and the run ends at that time or after `steps`, whichever is first."""

    out: Path
    steps: int = 4000
    rows: int = 8
    length: int = 512
    layers: int = 6
    lr: float = 1e-3
    muon_lr: float = 0.02
    warmup: int = 60
    final_fraction: float = 0.05
    seed: int = 1
    drill_steps: int = 120
    drills_first: float = 1.0
    drills: float = 0.1
    late_step: int = 1600
    save_every_s: float = 240.0
    minutes: float = 0.0
    compiled: bool = True
    device: str = "cpu"
    workers: int = 1


class _Batches(Dataset[Batch]):
    """Batch i of a seed; a map-style dataset so that one worker process can run ahead."""

    def __init__(self, settings: Settings, first: int) -> None:
        self.settings, self.first = settings, first
        self.tokenizer = build_tokenizer()

    def __len__(self) -> int:
        return self.settings.steps - self.first

    def __getitem__(self, index: int) -> Batch:
        if index >= len(self):
            raise IndexError(index)
        s, step = self.settings, self.first + index
        drills = s.drills_first if step < s.drill_steps else s.drills
        mixture = EARLY_MIXTURE if step < s.late_step else LATE_MIXTURE
        return make_batch(self.tokenizer, s.seed * 1_000_003 + step, s.rows, s.length, drills, mixture)


def _only(items: list[Batch]) -> Batch:
    return items[0]


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float = 1.0, **_: Any
) -> tuple[Tensor, None]:
    """Attention on an additive mask [B, 1, T, T] without repeating the key-value heads; compiles into few kernels."""
    B, H, T, D = query.shape
    K = key.shape[1]
    scores_BKGTT = torch.matmul((query * scaling).reshape(B, K, H // K * T, D), key.transpose(2, 3)).view(
        B, K, H // K, T, T
    )
    scores_BKGTT = scores_BKGTT + attention_mask[:, :, None]
    weights_BKGTT = torch.softmax(scores_BKGTT.float(), -1).to(value.dtype)
    mixed_BHTD = torch.matmul(weights_BKGTT.view(B, K, H // K * T, T), value).view(B, H, T, D)
    return mixed_BHTD.transpose(1, 2).contiguous(), None


def batch_loss(
    model: Any, ids: Tensor, positions: Tensor, mask: Tensor, chosen: Tensor, targets: Tensor, weights: Tensor
) -> Tensor:
    """Mean cross-entropy at the chosen flat positions; logits are made only there."""
    hidden_BTE = model.model(
        input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
    ).last_hidden_state
    logits_KV = model.lm_head(hidden_BTE.reshape(-1, hidden_BTE.shape[-1])[chosen]).float()
    losses_K = torch.nn.functional.cross_entropy(logits_KV, targets, reduction="none")
    return (losses_K * weights).sum() / weights.sum()


def additive_mask(batch: Batch) -> Tensor:
    """The tree mask of a batch as bf16 [B, 1, T, T] to add to scores."""
    allowed = tree_mask(batch.positions, batch.branch, batch.fork, batch.document)  # on the batch's device
    return torch.where(allowed, 0.0, -30000.0).to(torch.bfloat16).unsqueeze(1)


def optimizers(model: Any, settings: Settings) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for the rest (all by AdamW when `muon_lr` is 0)."""
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    if settings.muon_lr == 0:
        return [torch.optim.AdamW([*hidden, *rest], lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.05, fused=True)]
    return [
        torch.optim.Muon(hidden, lr=settings.muon_lr, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(rest, lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def rate(step: int, progress: float, settings: Settings) -> float:
    """Fraction of the peak learning rate: linear warm-up, then a cosine down to `final_fraction` at progress 1."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    return settings.final_fraction + (1 - settings.final_fraction) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def publish(model: Any, tokenizer: Any, out: Path, step: int, report: dict[str, Any]) -> Path:
    """Write `out/step-N` (bf16 weights, tokenizer, report) and point `out/latest` at it in one rename."""
    folder = out / f"step-{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    implementation = model.config._attn_implementation
    model.config._attn_implementation = "sdpa"
    weights = {name: value.to("cpu", torch.bfloat16) for name, value in model.state_dict().items()}
    del weights["lm_head.weight"]  # tied to the embeddings
    model.save_pretrained(folder, state_dict=weights)
    model.config._attn_implementation = implementation
    config = json.loads((folder / "config.json").read_text())  # it names the type of the weights in training
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}, indent=2) + "\n")
    save_tokenizer(tokenizer, folder)
    (folder / "pretraining.json").write_text(json.dumps(report, indent=1) + "\n")
    link = out / ".latest"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(out / "latest")
    for old in sorted(out.glob("step-*"))[:-3]:
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    return folder


def pretrain(settings: Settings) -> None:
    """Run the pretraining to its last step; resumes from `out/resume.pt` if there is one."""
    torch.set_num_threads(1)
    AttentionInterface.register("grouped", grouped_attention)
    settings.out.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    device = torch.device(settings.device)
    model = build_model(tokenizer, settings.layers, settings.seed).to(device)
    model.config._attn_implementation = "grouped"
    steppers = optimizers(model, settings)
    first, spent, resume = 0, 0.0, settings.out / "resume.pt"
    if resume.exists():
        saved = torch.load(resume, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        for stepper, state in zip(steppers, saved["steppers"], strict=True):
            stepper.load_state_dict(state)
        first, spent = saved["step"], saved["seconds"]
    peaks = [[group["lr"] for group in stepper.param_groups] for stepper in steppers]
    if first:
        peaks = [[settings.lr]] if len(steppers) == 1 else [[settings.muon_lr], [settings.lr]]
    held_out = held_out_samples(seed=0, count=24)
    loss_of = torch.compile(batch_loss, dynamic=False) if settings.compiled else batch_loss
    loader = DataLoader(
        _Batches(settings, first), batch_size=1, collate_fn=_only, num_workers=settings.workers, prefetch_factor=4
    )
    started = saved_at = time.monotonic()
    log = (settings.out / "log.jsonl").open("a")
    recent: list[float] = []
    for step, drawn in enumerate(_timed(loader), start=first):
        batch = drawn.to(device)
        progress = step / settings.steps
        if settings.minutes:
            progress = max(progress, (spent + time.monotonic() - started) / (60 * settings.minutes))
        fraction = rate(step, progress, settings)
        for stepper, peak in zip(steppers, peaks, strict=True):
            for group, value in zip(stepper.param_groups, peak, strict=True):
                group["lr"] = value * fraction
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(
                model, batch.ids, batch.positions, additive_mask(batch), batch.chosen, batch.targets, batch.weights
            )
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        recent.append(loss.item())
        last = step + 1 == settings.steps or progress >= 1
        if (step + 1) % 50 == 0 or last:
            elapsed = time.monotonic() - started
            speed = (step + 1 - first) * settings.rows * settings.length / elapsed
            line = {"step": step + 1, "loss": sum(recent) / len(recent), "seconds": elapsed, "tokens_per_s": speed}
            recent.clear()
            _write(log, line)
        if last or time.monotonic() - saved_at > settings.save_every_s:
            report: dict[str, Any] = {"step": step + 1, "tokens": (step + 1) * settings.rows * settings.length}
            report |= transition_accuracy(model, tokenizer, held_out) | action_accuracy(model, tokenizer, held_out)
            _write(log, report)
            publish(model, tokenizer, settings.out, step + 1, report)
            seconds = spent + time.monotonic() - started
            state = {"model": model.state_dict(), "step": step + 1, "seconds": seconds}
            state["steppers"] = [stepper.state_dict() for stepper in steppers]
            torch.save(state, resume.with_suffix(".tmp"))
            resume.with_suffix(".tmp").replace(resume)
            saved_at = time.monotonic()
        if last:
            break


def _timed(loader: DataLoader[Batch]) -> Iterator[Batch]:
    yield from loader


def _write(log: Any, line: dict[str, Any]) -> None:
    log.write(json.dumps(line) + "\n")
    log.flush()
    print(json.dumps(line), flush=True)


def main() -> None:
    """Parse the command line and pretrain."""
    parser = argparse.ArgumentParser(description="Pretrain the base model on procedural text worlds.")
    parser.add_argument("--out", type=Path, default=Path("runs/base"), help="folder of checkpoints and log")
    parser.add_argument("--device", default=Settings.device, help="cpu or cuda")
    for name in ("steps", "rows", "length", "layers", "warmup", "drill_steps", "late_step", "seed", "workers"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Settings, name))
    for name in ("lr", "muon_lr", "drills_first", "drills", "save_every_s", "minutes"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(Settings, name))
    parser.add_argument("--eager", action="store_true", help="do not compile the step")
    arguments = vars(parser.parse_args())
    pretrain(Settings(compiled=not arguments.pop("eager"), **arguments))


if __name__ == "__main__":
    main()
