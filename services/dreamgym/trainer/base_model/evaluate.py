"""How well the base model has learnt: held-out worlds, and whole episodes played by it."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dreamgym.trainer.base_model.batches import encode_pieces
from dreamgym.trainer.base_model.drawing import draw_world
from dreamgym.trainer.base_model.layout import Sample, experience_sample, policy_sample
from dreamgym.trainer.base_model.phrases import REASONS
from dreamgym.trainer.base_model.tokenizer import entity_parts
from dreamgym.trainer.base_model.wording import draw_wording
from dreamgym.trainer.branch_packing import PackedSequence, attention_mask, pack_branches

HELD_OUT_SEEDS = 900_000_000
"""Seeds from here on are never trained on: their wordings, nouns and worlds are new combinations."""


def held_out_samples(seed: int, count: int) -> list[Sample]:
    """`count` experience and `count` policy samples of fresh wordings."""
    rng = random.Random(HELD_OUT_SEEDS + seed)
    samples = [experience_sample(rng, draw_wording(rng)) for _ in range(count)]
    return samples + [policy_sample(rng, draw_world(rng, draw_wording(rng)), "expert") for _ in range(count)]


@torch.no_grad()
def best_tokens(model: Any, packed: PackedSequence) -> Tensor:
    """The model's likeliest next token after each token of a packed sequence, [T]."""
    device = model.device
    mask = attention_mask(packed)[None, None].to(device)
    additive = torch.where(mask, 0.0, -30000.0).to(torch.bfloat16)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits_TV = model(
            input_ids=torch.tensor([packed.ids], device=device),
            position_ids=torch.tensor([packed.positions], device=device),
            attention_mask=additive,
            use_cache=False,
        ).logits[0]
    best: Tensor = logits_TV.argmax(-1)
    return best


def transition_accuracy(model: Any, tokenizer: Tokenizer, samples: list[Sample]) -> dict[str, float]:
    """Of the experience samples, the share of next states and flags whose every token is the likeliest one given the
    true reasoning, by kind of action and for what the input determines (`known`); the same with the reasoning
    (`answer_exact`, which no model can get right throughout, since each wording words its reasons differently and
    shows none); the accuracy on entity tokens of the answer; and on whether the action is possible."""
    entities = {ids[0] for ids in entity_parts(tokenizer)}
    bad = {tokenizer.encode(" " + text).ids[0] for text in REASONS["bad"]}
    equals = tokenizer.encode("=").ids[0]
    hits: dict[str, list[float]] = defaultdict(list)

    def refused(tokens: list[int]) -> bool:
        return tokens[0] in bad

    for sample in (s for s in samples if s.role == "experience"):
        main, weights, starts = encode_pieces(tokenizer, sample.main)
        encoded = [encode_pieces(tokenizer, branch.pieces) for branch in sample.branches]
        forks = [starts[branch.fork] for branch in sample.branches]
        packed = pack_branches(main, [(f, e[0], e[1]) for f, e in zip(forks, encoded, strict=True)], weights)
        best = best_tokens(model, packed)
        offset = len(main)
        for branch, (ids, _, parts) in zip(sample.branches, encoded, strict=True):
            answer = ids[parts[1] :]
            guess = best[offset + parts[1] - 1 : offset + len(ids) - 1].tolist()
            right = [a == g for a, g in zip(answer, guess, strict=True)]
            state = right[answer.index(equals) :]
            known = "known" if branch.known else "unknown"
            hits[f"answer_exact/{known}"].append(all(right))
            hits[f"state_exact/{known}"].append(all(state))
            if branch.known:
                hits[f"state_exact/{branch.kind}"].append(all(state))
                hits["entity_accuracy"].extend(r for a, r in zip(answer, right, strict=True) if a in entities)
            hits["refusal_told_apart"].append(refused(guess) == refused(answer))
            offset += len(ids)
    return {name: round(sum(values) / len(values), 4) for name, values in sorted(hits.items())}


def action_accuracy(model: Any, tokenizer: Tokenizer, samples: list[Sample]) -> dict[str, float]:
    """Of the policy samples: share of expert actions whose every token is the likeliest one (search order is
    partly random, so 1 is out of reach), and the same for the actions after the target was taken."""
    hits: list[bool] = []
    tokens: list[bool] = []
    for sample in (s for s in samples if s.role == "policy"):
        ids, weights, starts = encode_pieces(tokenizer, sample.main)
        best = best_tokens(model, pack_branches(ids, [], weights)).tolist()
        for number, piece in enumerate(sample.main):
            if piece.weight == 1.0:
                span = range(starts[number], starts[number + 1])
                right = [ids[i] == best[i - 1] for i in span]
                hits.append(all(right))
                tokens.extend(right)
    return {
        "action_exact": round(sum(hits) / len(hits), 4),
        "action_token_accuracy": round(sum(tokens) / len(tokens), 4),
    }
