"""Stage `train_policy` with algorithm `sft`: imitate a few successful seed episodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from dreamgym.core.action_choices import learn_rules
from dreamgym.core.action_vocabulary import CHOICES, SEEN
from dreamgym.core.consistency import refusals_of
from dreamgym.core.episodes import Source
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.jobs import TrainPolicy
from dreamgym.inference.local_model import load_tokenizer
from dreamgym.trainer.branch_packing import PackedSequence
from dreamgym.trainer.checkpoints import StageCheckpoints
from dreamgym.trainer.model_files import hash_of, vocabulary_size
from dreamgym.trainer.policy_data import choose_demonstrations, demonstration
from dreamgym.trainer.relabelling import copies, names_of_things
from dreamgym.trainer.stages.context import StageContext
from dreamgym.trainer.supervised import train_supervised


async def run(context: StageContext, spec: TrainPolicy) -> dict[str, Any]:
    parent = await context.resolve(spec.policy, "policy")
    seeds = await context.episodes(Source.SEED, Source.REAL, splits=("train",))
    chosen = choose_demonstrations(seeds, spec.demonstrations)
    if not chosen:
        raise InvalidInputError(
            "No seed episode of split `train` succeeded, so there is nothing to imitate.",
            remedy="Upload successful trajectories, or start from a policy that already acts.",
        )
    tokenizer = load_tokenizer(parent.path)

    @lru_cache(maxsize=65_536)
    def encode(text: str) -> Sequence[int]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    count = max(1, min(spec.relabelled_copies, round(spec.epochs)))
    seed = f"{context.session.seed}:{context.stage}"
    rules = None
    if spec.action_vocabulary == CHOICES:
        rules = learn_rules(context.environment.action_format, seeds, refusals_of(seeds))
    kind = SEEN if spec.action_vocabulary == CHOICES and rules is None else spec.action_vocabulary
    names = names_of_things(seeds)

    def shown() -> list[PackedSequence]:
        relabelled = (copy for episode in chosen for copy in copies(episode, count, seed, names))
        return [demonstration(copy, encode, rules) for copy in relabelled]

    sequences = await context.in_thread(shown)
    trained = await train_supervised(
        context,
        parent,
        sequences,
        spec.optimizer,
        epochs=spec.epochs / count,
        pad_id=0,
        time_limit_s=spec.time_limit_s,
        name="policy_loss",
        space=context.action_space(kind, rules, encode, vocabulary_size(parent.path)),
    )
    manifest = {"config": spec.model_dump(mode="json"), "data": hash_of([e.id for e in chosen])}
    card = {
        "action_vocabulary": kind,
        "action_rules": rules.model_dump(mode="json") if rules else None,
    }
    named = await context.publish("policy", trained.state.model, parent, card=card, manifest=manifest)
    StageCheckpoints(context.store, context.session.job_id, context.stage).clear()
    return {
        **named,
        **trained.summary(),
        "demonstrations": len(chosen),
        "real_transitions": 0,
        "algorithm": "sft",
        "action_vocabulary": kind,
    }
