"""Stage `train_policy` with algorithm `sft`: imitate a few successful seed episodes."""

from __future__ import annotations

from typing import Any

from dreamgym.core.action_choices import learn_rules
from dreamgym.core.action_vocabulary import CHOICES, SEEN
from dreamgym.core.consistency import refusals_of
from dreamgym.core.episodes import Source
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.jobs import TrainPolicy
from dreamgym.trainer.checkpoints import StageCheckpoints
from dreamgym.trainer.model_files import hash_of
from dreamgym.trainer.policy_data import choose_demonstrations
from dreamgym.trainer.stages.context import StageContext
from dreamgym.trainer.stages.imitation import imitate


async def run(context: StageContext, spec: TrainPolicy) -> dict[str, Any]:
    parent = await context.resolve(spec.policy, "policy")
    seeds = await context.episodes(Source.SEED, Source.REAL, splits=("train",))
    chosen = choose_demonstrations(seeds, spec.demonstrations)
    if not chosen:
        raise InvalidInputError(
            "No seed episode of split `train` succeeded, so there is nothing to imitate.",
            remedy="Upload successful trajectories, or start from a policy that already acts.",
        )
    rules = None
    if spec.action_vocabulary == CHOICES:
        rules = learn_rules(context.environment.action_format, seeds, refusals_of(seeds))
    kind = SEEN if spec.action_vocabulary == CHOICES and rules is None else spec.action_vocabulary
    trained = await imitate(
        context, parent, chosen, spec, kind=kind, rules=rules, named_in=seeds, time_limit_s=spec.time_limit_s
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
