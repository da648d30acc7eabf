"""Stages `train_policy` (GRPO) and `sim_to_real`: iterations of curriculum, rollouts, update; in the dream or in reality."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from dreamgym.core.episodes import Source, TerminationReason
from dreamgym.core.errors import AdapterMissingError, InvalidInputError
from dreamgym.core.jobs import SimToReal, TrainPolicy
from dreamgym.inference.local import LocalEngine
from dreamgym.inference.local_model import load_model
from dreamgym.trainer.checkpoints import StageCheckpoints
from dreamgym.trainer.policy_update import score_groups, update_policy
from dreamgym.trainer.rollout import PlayedEpisode, World, figures_of, seed_of
from dreamgym.trainer.stages.canary import fly_canary
from dreamgym.trainer.stages.context import StageContext, Stopwatch
from dreamgym.trainer.stages.curriculum_run import CurriculumRun
from dreamgym.trainer.stages.enrichment import Enrichment
from dreamgym.trainer.stages.iteration import Plan, plan_of, play_groups, refuse_outage, report_iteration, world_of
from dreamgym.trainer.training_state import TrainingState


@dataclass
class Progress:
    """What a stage has done so far; all of it is in the checkpoint."""

    iteration: int
    curve: list[dict[str, Any]]
    seconds: float
    tokens: int
    episodes: int
    transitions: int
    stopped_by: str = ""
    replay_cursor: int = 0
    """Newest transition that the retrieval of the next iteration may see."""
    canary_transitions: int = 0
    """Real transitions that canaries took; they are not part of the training budget but are reported."""


async def run(context: StageContext, spec: TrainPolicy | SimToReal) -> dict[str, Any]:
    plan = plan_of(spec)
    if plan.source is Source.REAL and not context.environment.adapter:
        raise AdapterMissingError(
            f"The environment {context.environment.name!r} has no real adapter.",
            remedy="Create it with an adapter, or train with source: dream.",
        )
    parent = await context.resolve(spec.policy, "policy")
    tasks = await context.session.tasks("train")
    if not tasks:
        raise InvalidInputError(
            f"The environment {context.environment.name!r} has no tasks of split `train`.",
            remedy="Add tasks: POST /v1/environments/{env}/tasks.",
        )
    world, experience_version = await world_of(context, spec, plan)
    checkpoints = StageCheckpoints(
        context.store, context.session.job_id, context.stage, context.settings.checkpoints_kept
    )
    trusted = StageCheckpoints(context.store, context.session.job_id, context.stage, 1, series="trusted")
    state = TrainingState(parent.path, plan.optimizer, plan.iterations * plan.update.minibatches)
    progress = Progress(0, [], 0.0, 0, 0, 0)
    newest = checkpoints.newest()
    if newest is not None:
        progress = Progress(**state.restore(newest))
        context.session.event("stage.resumed", stage=context.stage, iteration=progress.iteration)
    reference = None
    if plan.update.kl_coefficient > 0:
        reference = load_model(parent.path, torch.float32).eval()
    engine = LocalEngine(parent.path, f"{parent.version}+{progress.iteration}", slots=context.settings.trainer_slots)
    if progress.iteration:
        engine.load_weights(state.model.state_dict(), f"{parent.version}+{progress.iteration}")
    space = context.policy_space(parent, engine)
    world = replace(world, space=space)
    plan = replace(plan, update=replace(plan.update, space=space))
    curriculum = CurriculumRun(context)
    await curriculum.open(tasks, synthetic_share=plan.synthetic_share, experience_model=experience_version)
    if newest is not None:
        await curriculum.rewind(progress.iteration)
    enrichment = Enrichment(context)
    progress.replay_cursor = await enrichment.open(progress.replay_cursor)
    watch = Stopwatch(progress.seconds)
    try:
        while progress.iteration < plan.iterations and not progress.stopped_by:
            context.check()
            if progress.iteration and watch.exceeded(plan.time_limit_s, ahead=watch.seconds / progress.iteration):
                progress.stopped_by = f"time limit of {plan.time_limit_s:g} s"
                break
            world = replace(world, replay_cursor=progress.replay_cursor)
            point, played = await _iterate(context, plan, world, engine, state, reference, curriculum, progress)
            budget_spent = any(episode.termination is TerminationReason.BUDGET for episode in played)
            if plan.source is Source.DREAM:
                progress.replay_cursor = await enrichment.store(progress.iteration, played, progress.replay_cursor)
            progress.iteration += 1
            progress.seconds = watch.seconds
            progress.curve.append(point)
            engine.load_weights(state.model.state_dict(), f"{parent.version}+{progress.iteration}")
            if budget_spent:
                progress.stopped_by = f"budget of {plan.budget} real transitions spent"
            elif isinstance(spec, TrainPolicy) and spec.canary_every and progress.iteration % spec.canary_every == 0:
                verdict = await fly_canary(context, spec, engine, world, tasks, progress.iteration)
                progress.canary_transitions += verdict.real_transitions
                point["canary"] = verdict.as_dict()
                if verdict.exploited:
                    progress.stopped_by = "canary: " + verdict.text
                else:
                    await context.in_thread(trusted.save, progress.iteration, state, vars(progress))
            if progress.iteration % plan.checkpoint_every == 0:
                location = await context.in_thread(checkpoints.save, progress.iteration, state, vars(progress))
                context.session.event("checkpoint.published", stage=context.stage, location=location)
    finally:
        await engine.close()
    published = progress.iteration
    if progress.stopped_by.startswith("canary"):
        # What exploits the model is not handed out: the newest policy that a canary passed is, or the one before training.
        passed = trusted.newest()
        published = int(state.restore(passed)["iteration"]) if passed else 0
        if passed is None:
            state = TrainingState(parent.path, plan.optimizer, 1)
        context.session.event("policy.rolled_back", stage=context.stage, iteration=published, why=progress.stopped_by)
    manifest = {"config": spec.model_dump(mode="json"), "iterations": published}
    named = await context.publish("policy", state.model, parent, manifest=manifest)
    checkpoints.clear()
    trusted.clear()
    return {
        **named,
        "algorithm": "grpo",
        "source": plan.source.value,
        "experience_model": experience_version,
        "iterations_done": progress.iteration,
        "published_iteration": published,
        "curve": progress.curve,
        f"{plan.source}_success_first": progress.curve[0]["success"] if progress.curve else None,
        f"{plan.source}_success_last": progress.curve[-1]["success"] if progress.curve else None,
        "episodes": progress.episodes,
        "dream_transitions": progress.transitions if plan.source is Source.DREAM else 0,
        "real_transitions": (progress.transitions if plan.source is Source.REAL else 0) + progress.canary_transitions,
        "budget": plan.budget,
        "tokens": progress.tokens,
        "seconds": watch.seconds,
        "skipped_steps": state.skipped_steps,
        "stopped_by": progress.stopped_by,
    }


async def _iterate(
    context: StageContext,
    plan: Plan,
    world: World,
    engine: LocalEngine,
    state: TrainingState,
    reference: Any | None,
    curriculum: CurriculumRun,
    progress: Progress,
) -> tuple[dict[str, Any], list[PlayedEpisode]]:
    """One iteration; answers its point of the curve and the episodes that were played."""
    number = progress.iteration
    started = time.monotonic()
    tasks, groups = await play_groups(context, plan, world, engine, curriculum, number)
    played = [episode for group in groups for episode in group]
    refuse_outage(played, world)
    await curriculum.report(number, tasks, groups)
    played_at = time.monotonic()
    scored = score_groups(groups, plan.update)
    rng = random.Random(seed_of(context.session.seed, context.stage, number, "update"))
    numbers = await context.in_thread(update_policy, state, reference, scored, plan.update, rng)
    progress.episodes += len(played)
    progress.transitions += sum(len(episode.transitions) for episode in played)
    progress.tokens += sum(e.policy_tokens + e.environment_tokens for e in played)
    point = {
        "iteration": number,
        **figures_of(played),
        "reward": scored.mean_reward,
        **numbers,
        "groups_used": scored.groups_used,
        "groups_zero_variance": scored.groups_zero_variance,
        "groups_incomplete": scored.groups_incomplete,
        "groups_refilled": max(0, len(groups) - plan.tasks_per_iteration),
        "synthetic_tasks": sum(bool(task.parent_id) for task in tasks),
        "rollout_seconds": played_at - started,
        "update_seconds": time.monotonic() - played_at,
        "seconds": time.monotonic() - started,
    }
    report_iteration(context, world, point)
    return point, played
