"""Is the base a lever? Fine-tune it, and the same model from scratch, on recorded episodes and compare.

`python -m dreamgym.trainer.base_model.probe --seeds episodes.jsonl.gz --base FOLDER --role policy --episodes 100`

Episodes are JSON lines with `task_id`, `instruction`, `initial_state`, `success`, `steps[action, state, valid]`. The
held-out episodes belong to other tasks than those trained on. Measured is greedy exactness by teacher forcing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from dreamgym.trainer.base_model.batches import encode_pieces
from dreamgym.trainer.base_model.evaluate import action_accuracy, transition_accuracy
from dreamgym.trainer.base_model.layout import Branch, Piece, Sample
from dreamgym.trainer.base_model.model import build_model
from dreamgym.trainer.branch_packing import (
    PackedSequence,
    join_row,
    pack_branches,
    prediction_targets,
    tree_mask,
)

_ENTITY = re.compile(r"\b[a-z]+ \d+\b")

Episode = dict[str, Any]


def read_episodes(path: Path) -> list[Episode]:
    """The episodes of a JSON lines file, compressed if its name ends in `.gz`."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return [json.loads(line) for line in lines]


def split_by_task(episodes: list[Episode], held_out: float, seed: int) -> tuple[list[Episode], list[Episode]]:
    """Training and held-out episodes; no task is in both."""
    tasks = sorted({episode["task_id"] for episode in episodes})
    random.Random(seed).shuffle(tasks)
    kept = set(tasks[int(held_out * len(tasks)) :])
    return [e for e in episodes if e["task_id"] in kept], [e for e in episodes if e["task_id"] not in kept]


def policy_transcript(episode: Episode) -> Sample:
    """The episode as the policy reads it, with the loss on every action."""
    pieces = [Piece(f"Task: {episode['instruction']}\n{episode['initial_state']}\n>", 0.0)]
    for number, step in enumerate(episode["steps"]):
        end = ">" if number + 1 < len(episode["steps"]) else ""
        pieces.append(Piece(f" {step['action']}\n", 1.0))
        pieces.append(Piece(f"{step['state']}\n{end}", 0.0))
    return Sample("policy", pieces)


def world_sheets(episodes: list[Episode]) -> dict[str, dict[str, list[str]]]:
    """For each task what its episodes reveal: the first listing of every place before anything was put there."""
    sheets: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for episode in episodes:
        places, here, touched = _ENTITY.findall(episode["initial_state"]), "", set()
        for step in episode["steps"]:
            if not step["valid"]:
                continue
            named = [name for name in _ENTITY.findall(step["action"]) if name in places]
            here = named[-1] if named else here
            if step["action"].split()[0] in ("move", "put", "take"):
                touched.add(here)
            if step["action"].split()[0] in ("go", "open") and "you see" in step["state"] and here not in touched:
                sheets[episode["task_id"]].setdefault(here, _things(step["state"], here))
    return sheets


def experience_questions(
    episode: Episode, sheet: dict[str, list[str]], pool: list[Episode], rng: random.Random
) -> Sample:
    """The episode as main chain and each of its steps as a branch with a plain reasoning line."""
    places = _ENTITY.findall(episode["initial_state"])
    facts = [f"{p}: {', '.join(sheet[p]) or 'nothing'}" for p in places if p in sheet]
    pieces = [
        Piece(f"World: {'; '.join(facts) or 'unknown'}\n", 0.0),
        Piece(f"Task: {episode['instruction']}\n{episode['initial_state']}\n", 0.0),
    ]
    sample, here, held = Sample("experience", pieces), "", ""
    for index, step in enumerate(episode["steps"]):
        demos = _similar(step, pool, rng)
        lines = "".join(f"~ > {d['action']} = {d['state']}\n" for d in demos)
        verb = step["action"].split()[0]
        named = [name for name in _ENTITY.findall(step["action"])]
        if step["valid"]:
            here = next((name for name in reversed(named) if name in places), here)
            held = named[0] if verb == "take" else "" if verb in ("move", "put") else held
        reasoning = _reason(step, here, held)
        flag = "success" if step["success"] else "continue"
        sample.branches.append(
            Branch(
                2 + 2 * index,
                (
                    Piece(f"{lines}> {step['action']}\n?", 0.0),
                    Piece(f" {reasoning}\n= {step['state']}\n# {flag}\n", 1.0),
                ),
                verb if step["valid"] else "refuse",
                known=True,
            )
        )
        pieces.append(Piece(f"> {step['action']}\n", 0.0))
        pieces.append(Piece(f"{step['state']}\n", 0.0))
    return sample


def thinned(sample: Sample, most: int, rng: random.Random) -> Sample:
    """The sample with at most `most` of its branches, drawn at random."""
    kept = sorted(rng.sample(range(len(sample.branches)), min(most, len(sample.branches))))
    return Sample(sample.role, sample.main, [sample.branches[i] for i in kept])


def _things(state: str, here: str) -> list[str]:
    return [name for name in _ENTITY.findall(state) if name != here]


def _reason(step: dict[str, Any], here: str, held: str) -> str:
    if not step["valid"]:
        return "impossible: no effect."
    line = f"valid; at {here or 'nothing'}; holding {held or 'nothing'}"
    if step["action"].split()[0] in ("go", "open") and "you see" in step["state"]:
        return f"{line}; sheet: {here} has {', '.join(_things(step['state'], here)) or 'nothing'}."
    return f"{line}; {here} is closed." if "closed" in step["state"] else f"{line}."


def _similar(step: dict[str, Any], pool: list[Episode], rng: random.Random) -> list[dict[str, Any]]:
    verb = step["action"].split()[0]
    steps = [s for episode in rng.sample(pool, min(6, len(pool))) for s in episode["steps"]]
    same = [s for s in steps if s["action"].split()[0] == verb]
    return rng.sample(same, min(3, len(same)))


def pack(tokenizer: Tokenizer, sample: Sample) -> PackedSequence:
    """A sample as a packed sequence, whole."""
    main, weights, starts = encode_pieces(tokenizer, sample.main)
    encoded = [encode_pieces(tokenizer, branch.pieces) for branch in sample.branches]
    branches = [(starts[b.fork], e[0], e[1]) for b, e in zip(sample.branches, encoded, strict=True)]
    return pack_branches(main, branches, weights)


def fine_tune(model: Any, packed: list[PackedSequence], epochs: int, lr: float, batch: int, seed: int) -> None:
    """Plain SFT: AdamW, warm-up then linear decay, batches of `batch` sequences of similar length."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    plan = []
    for _ in range(epochs):
        order = sorted(packed, key=lambda sequence: len(sequence) + rng.random() * 60)
        groups = [order[i : i + batch] for i in range(0, len(order), batch)]
        rng.shuffle(groups)
        plan.extend(groups)
    model.train()
    for number, group in enumerate(plan):
        fraction = min((number + 1) / 10, 1 - number / len(plan))
        for parameters in optimizer.param_groups:
            parameters["lr"] = lr * fraction
        loss = _loss(model, group)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()


def _loss(model: Any, group: list[PackedSequence]) -> torch.Tensor:
    length = max(len(sequence) for sequence in group)
    rows = [join_row([sequence], length, 0) for sequence in group]
    columns = {
        n: torch.tensor([getattr(row, n) for row in rows]) for n in ("ids", "positions", "branch", "fork", "document")
    }
    pairs = [prediction_targets(row) for row in rows]
    targets = torch.tensor([pair[0] for pair in pairs]).reshape(-1)
    weights = torch.tensor([pair[1] for pair in pairs]).reshape(-1)
    mask = tree_mask(columns["positions"], columns["branch"], columns["fork"], columns["document"]).unsqueeze(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(
            input_ids=columns["ids"], position_ids=columns["positions"], attention_mask=mask, use_cache=False
        ).last_hidden_state
        chosen = weights.nonzero().squeeze(1)
        logits = model.lm_head(hidden.reshape(-1, hidden.shape[-1])[chosen]).float()
    losses = torch.nn.functional.cross_entropy(logits, targets[chosen], reduction="none")
    return (losses * weights[chosen]).mean()


def load_start(base: Path | None, tokenizer: Tokenizer, seed: int) -> Any:
    """The base in fp32, or with `base` None a fresh model of the same shape."""
    if base is None:
        return build_model(tokenizer, seed=seed)
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


def main() -> None:
    """Fine-tune once and print what it reached as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--base", type=Path, help="folder of the base; from scratch if left out")
    parser.add_argument("--role", choices=("policy", "experience"), default="policy")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to save the fine-tuned model")
    a = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(a.tokenizer / "tokenizer.json"))
    rng = random.Random(a.seed)
    training, held_out = split_by_task(read_episodes(a.seeds), 0.25, seed=0)
    if a.role == "policy":
        training, held_out = ([e for e in part if e["success"]] for part in (training, held_out))
    rng.shuffle(training)
    training = training[: a.episodes]
    if a.role == "policy":
        made, tests = ([policy_transcript(e) for e in part] for part in (training, held_out))
    else:
        sheets = world_sheets(training + held_out)
        made, tests = (
            [experience_questions(e, sheets[e["task_id"]], training, rng) for e in part]
            for part in (training, held_out[:30])
        )
    if a.role == "experience":
        made, tests = [thinned(m, 7, rng) for m in made], [thinned(t, 7, rng) for t in tests]
    model = load_start(a.base, tokenizer, a.seed)
    packed = [pack(tokenizer, sample) for sample in made]
    started = time.monotonic()
    fine_tune(model, packed, a.epochs, a.lr, batch=8, seed=a.seed)
    measure = action_accuracy if a.role == "policy" else transition_accuracy
    report = {"base": str(a.base), "role": a.role, "episodes": len(training), "epochs": a.epochs, "lr": a.lr}
    report |= {"seconds": round(time.monotonic() - started, 1), "tokens_per_epoch": sum(len(p) for p in packed)}
    print(json.dumps(report | measure(model, tokenizer, tests)), flush=True)
    if a.out:
        model.save_pretrained(a.out)


if __name__ == "__main__":
    main()
