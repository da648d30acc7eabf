"""Trains a policy on whole episodes as if it had played them: the warm start, and what expert iteration learns from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dreamgym.core.action_choices import ActionRules
from dreamgym.core.episodes import Episode
from dreamgym.core.jobs import TrainPolicy
from dreamgym.inference.local_model import load_tokenizer
from dreamgym.trainer.branch_packing import PackedSequence
from dreamgym.trainer.model_files import vocabulary_size
from dreamgym.trainer.policy_data import demonstration
from dreamgym.trainer.relabelling import copies, names_of_things
from dreamgym.trainer.stages.context import ModelReference, StageContext
from dreamgym.trainer.supervised import SupervisedRun, train_supervised


async def imitate(
    context: StageContext,
    parent: ModelReference,
    episodes: Sequence[Episode],
    spec: TrainPolicy,
    *,
    kind: str,
    rules: ActionRules | None,
    named_in: Sequence[Episode],
    time_limit_s: float | None,
) -> SupervisedRun:
    """Minimise the negative log-likelihood of the episodes' accepted actions, `spec.epochs` times.

    `kind` and `rules` say what the policy's actions may consist of; the relabelled copies take their names of things from
    the episodes `named_in`. Resumes from the stage's newest checkpoint.
    """
    tokenizer = load_tokenizer(parent.path)

    @lru_cache(maxsize=65_536)
    def encode(text: str) -> Sequence[int]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    count = max(1, min(spec.relabelled_copies, round(spec.epochs)))
    seed = f"{context.session.seed}:{context.stage}"
    names = names_of_things(named_in)

    def shown() -> list[PackedSequence]:
        relabelled = (copy for episode in episodes for copy in copies(episode, count, seed, names))
        return [demonstration(copy, encode, rules) for copy in relabelled]

    return await train_supervised(
        context,
        parent,
        await context.in_thread(shown),
        spec.optimizer,
        epochs=spec.epochs / count,
        pad_id=0,
        time_limit_s=time_limit_s,
        name="policy_loss",
        space=context.action_space(kind, rules, encode, vocabulary_size(parent.path)),
    )
