"""Stage `train_policy` with algorithm `expert_iteration`: sample in the dream, keep what succeeds, imitate it.

Anthony et al. 2017; Singh et al. 2023 (ReST-EM), one round a stage: the policy plays `iterations` times
`tasks_per_iteration` groups without changing, the best successes of each group join the demonstrations, and the policy is
trained on both from where it stood. What was sampled is kept in the object store, so a resumed stage samples only the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from dreamgym.core.action_choices import ActionRules
from dreamgym.core.action_vocabulary import OPEN
from dreamgym.core.episodes import Episode, Source
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.jobs import TrainPolicy
from dreamgym.inference.local import LocalEngine
from dreamgym.trainer.checkpoints import StageCheckpoints
from dreamgym.trainer.model_files import hash_of, read_card
from dreamgym.trainer.policy_data import choose_demonstrations
from dreamgym.trainer.rollout import PlayedEpisode, figures_of
from dreamgym.trainer.stages.context import ModelReference, StageContext, Stopwatch
from dreamgym.trainer.stages.curriculum_run import CurriculumRun
from dreamgym.trainer.stages.enrichment import Enrichment
from dreamgym.trainer.stages.imitation import imitate
from dreamgym.trainer.stages.iteration import (
    Plan,
    plan_of,
    play_groups,
    refuse_outage,
    report_iteration,
    world_of,
)
from dreamgym.v1 import replay_pb2
from dreamgym.wire.convert import episode_from_proto, episode_to_proto

SAMPLING_SHARE = 0.5
"""The part of the stage's progress, and of its time limit, that sampling takes."""


async def run(context: StageContext, spec: TrainPolicy) -> dict[str, Any]:
    if spec.source != "dream" or spec.canary_every:
        raise InvalidInputError(
            "Expert iteration samples in the dream only, and its policy does not change under a canary.",
            remedy="Set source to dream and canary_every to 0, or the algorithm to grpo.",
        )
    watch = Stopwatch()
    plan = plan_of(spec)
    parent = await context.resolve(spec.policy, "policy")
    seeds = await context.episodes(Source.SEED, Source.REAL, splits=("train",))
    kept, curve, experience_version = await _sample(context, spec, plan, parent, watch)
    if not kept:
        raise InvalidInputError(
            "The policy succeeded in no dream, so there is nothing to imitate.",
            remedy="Warm-start it on more demonstrations, or sample more iterations.",
        )
    context.progress_span = (SAMPLING_SHARE, 1.0)
    shown = choose_demonstrations(seeds, spec.demonstrations)
    card = read_card(parent.path)
    rules = ActionRules.model_validate(card["action_rules"]) if card.get("action_rules") else None
    trained = await imitate(
        context,
        parent,
        [*shown, *kept],
        spec,
        kind=card.get("action_vocabulary", OPEN),
        rules=rules,
        named_in=seeds,
        time_limit_s=None if spec.time_limit_s is None else max(1.0, spec.time_limit_s - watch.seconds),
    )
    manifest = {"config": spec.model_dump(mode="json"), "data": hash_of([e.id for e in [*shown, *kept]])}
    named = await context.publish("policy", trained.state.model, parent, manifest=manifest)
    StageCheckpoints(context.store, context.session.job_id, context.stage).clear()
    for location in context.store.listed(_sampled_under(context)):
        context.store.remove(location)
    played = sum(point["episodes"] for point in curve)
    return {
        **named,
        **trained.summary(),
        "algorithm": "expert_iteration",
        "source": plan.source.value,
        "experience_model": experience_version,
        "iterations_done": len(curve),
        "curve": curve,
        "dream_success_first": curve[0]["success"],
        "dream_success_last": curve[-1]["success"],
        "episodes": played,
        "successes_imitated": len(kept),
        "demonstrations": len(shown),
        "dream_transitions": sum(point["transitions"] for point in curve),
        "real_transitions": 0,
        "tokens": sum(point["tokens"] for point in curve),
        "training_tokens": trained.tokens,
        "seconds": watch.seconds,
    }


async def _sample(
    context: StageContext, spec: TrainPolicy, plan: Plan, parent: ModelReference, watch: Stopwatch
) -> tuple[list[Episode], list[dict[str, Any]], str]:
    """Successes worth imitating, what each iteration brought, and the version of the dream."""
    world, experience_version = await world_of(context, spec, plan)
    engine = LocalEngine(parent.path, parent.version, slots=context.settings.trainer_slots)
    curriculum = CurriculumRun(context)
    context.progress_span = (0.0, SAMPLING_SHARE)
    limit = None if spec.time_limit_s is None else SAMPLING_SHARE * spec.time_limit_s
    kept: list[Episode] = []
    curve: list[dict[str, Any]] = []
    try:
        world = replace(world, space=context.policy_space(parent, engine))
        await curriculum.open(
            await context.session.tasks("train"),
            synthetic_share=plan.synthetic_share,
            experience_model=experience_version,
        )
        done = context.store.listed(_sampled_under(context))
        for location in done:
            point, successes = _kept(context, location)
            kept += successes
            curve.append(point)
        enrichment = Enrichment(context)
        cursor = await enrichment.open(curve[-1]["replay_cursor"] if curve else 0)
        for number in range(len(done), plan.iterations):
            context.check()
            if curve and limit is not None and watch.exceeded(limit, ahead=watch.seconds / len(curve)):
                break
            world = replace(world, replay_cursor=cursor)
            tasks, groups = await play_groups(context, plan, world, engine, curriculum, number)
            played = [episode for group in groups for episode in group]
            refuse_outage(played, world)
            await curriculum.report(number, tasks, groups)
            cursor = await enrichment.store(number, played, cursor)
            location = f"{_sampled_under(context)}/{number:06d}"
            _keep(context, location, groups, spec.imitated_per_group, {"iteration": number, "replay_cursor": cursor})
            point, successes = _kept(context, location)
            kept += successes
            curve.append(point)
            report_iteration(context, world, {name: value for name, value in point.items() if name != "replay_cursor"})
    finally:
        await engine.close()
    return kept, curve, experience_version


def best_successes(group: Iterable[PlayedEpisode], most: int) -> list[PlayedEpisode]:
    """The successes with the fewest refused actions and the fewest steps, no two with the same actions."""

    def waste(episode: PlayedEpisode) -> tuple[int, int, str]:
        return episode.invalid_actions, len(episode.transitions), episode.id

    found: dict[tuple[str, ...], PlayedEpisode] = {}
    for episode in sorted((e for e in group if e.counts and e.success), key=waste):
        found.setdefault(tuple(t.action for t in episode.transitions), episode)
    return list(found.values())[:most]


def _keep(
    context: StageContext,
    location: str,
    groups: Sequence[Sequence[PlayedEpisode]],
    most: int,
    place: Mapping[str, int],
) -> None:
    """Publish an iteration's successes and figures."""
    played = [episode for group in groups for episode in group]
    successes = [episode for group in groups for episode in best_successes(group, most)]
    point = {
        **place,
        **figures_of(played),
        "episodes": len(played),
        "imitated": len(successes),
        "transitions": sum(len(e.transitions) for e in played),
        "tokens": sum(e.policy_tokens + e.environment_tokens for e in played),
    }
    with context.store.writing(location) as folder:
        (folder / "point.json").write_bytes(orjson.dumps(point))
        messages = [
            episode_to_proto(episode.as_episode(Source.DREAM), environment_id=context.environment_id)
            for episode in successes
        ]
        (folder / "successes.bin").write_bytes(replay_pb2.StoredEpisodes(episodes=messages).SerializeToString())


def _kept(context: StageContext, location: str) -> tuple[dict[str, Any], list[Episode]]:
    folder = context.store.published(location).path
    stored = replay_pb2.StoredEpisodes.FromString((folder / "successes.bin").read_bytes())
    point: dict[str, Any] = orjson.loads((folder / "point.json").read_bytes())
    return point, [episode_from_proto(one) for one in stored.episodes]


def _sampled_under(context: StageContext) -> str:
    return f"checkpoints/{context.session.job_id}/{context.stage}-sampled"
