"""Stages `train_policy` (GRPO) and `sim_to_real`: iterations of curriculum, rollouts, update; in the dream or in reality."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dreamgym.core.episodes import Source, Task, TerminationReason
from dreamgym.core.errors import AdapterMissingError, FidelityTooLowError, InvalidInputError, UnavailableError
from dreamgym.core.fidelity_floor import FidelityFloor, floor_of
from dreamgym.core.jobs import Optimizer, Rollouts, SimToReal, TrainPolicy
from dreamgym.inference.local import LocalEngine
from dreamgym.inference.local_model import load_model
from dreamgym.trainer.checkpoints import StageCheckpoints
from dreamgym.trainer.policy_update import UpdateSettings, score_groups, teaches, update_policy
from dreamgym.trainer.rollout import Attempt, PlayedEpisode, World, play_all, seed_of
from dreamgym.trainer.stages.canary import fly_canary
from dreamgym.trainer.stages.context import StageContext, Stopwatch
from dreamgym.trainer.stages.curriculum_run import CurriculumRun
from dreamgym.trainer.stages.enrichment import Enrichment
from dreamgym.trainer.stages.evaluate import dream_world, real_world
from dreamgym.trainer.training_state import TrainingState
from dreamgym.wire.convert import load_json

MAX_FAILED_SHARE = 0.5
"""An iteration in which more episodes fail than this is an outage, not a measurement: the stage stops with the cause."""


@dataclass(frozen=True)
class Plan:
    """The fields that both kinds of stage share."""

    source: Source
    iterations: int
    tasks_per_iteration: int
    group_size: int
    synthetic_share: float
    budget: int
    time_limit_s: float | None
    checkpoint_every: int
    optimizer: Optimizer
    rollouts: Rollouts
    update: UpdateSettings
    refill_rounds: int = 0
    horizon_steps: tuple[int, ...] = ()

    def rollouts_of(self, iteration: int) -> Rollouts:
        """How an iteration's episodes are played: the step limit grows with the horizon schedule."""
        if not self.horizon_steps:
            return self.rollouts
        stretch = min(iteration * len(self.horizon_steps) // self.iterations, len(self.horizon_steps) - 1)
        steps = min(self.horizon_steps[stretch], self.rollouts.max_steps)
        return self.rollouts.model_copy(update={"max_steps": steps})


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


def plan_of(spec: TrainPolicy | SimToReal) -> Plan:
    """Read either kind of stage; refuses a real run without a budget."""
    real = isinstance(spec, SimToReal) or spec.source == "real"
    if real and not spec.real_transition_budget:
        raise InvalidInputError(
            "Training on the real environment needs a budget.", remedy="Set real_transition_budget above 0."
        )
    return Plan(
        source=Source.REAL if real else Source.DREAM,
        iterations=spec.iterations,
        tasks_per_iteration=spec.tasks_per_iteration,
        group_size=spec.group_size,
        synthetic_share=0.0 if real or isinstance(spec, SimToReal) else spec.synthetic_share,
        budget=spec.real_transition_budget if real else 0,
        time_limit_s=spec.time_limit_s,
        checkpoint_every=1 if isinstance(spec, SimToReal) else spec.checkpoint_every,
        optimizer=spec.optimizer,
        rollouts=spec.rollouts,
        refill_rounds=spec.refill_rounds,
        horizon_steps=spec.horizon_steps,
        update=UpdateSettings(
            kl_coefficient=spec.kl_coefficient,
            clip_low=spec.clip_low,
            clip_high=spec.clip_high,
            normalize_std=spec.normalize_std,
            invalid_action_penalty=spec.invalid_action_penalty,
            minibatches=spec.minibatches,
            temperature=spec.rollouts.temperature,
            step_credit=spec.step_credit,
            discount=spec.discount,
        ),
    )


async def world_of(context: StageContext, spec: TrainPolicy | SimToReal, plan: Plan) -> tuple[World, str]:
    if isinstance(spec, SimToReal) or plan.source is Source.REAL:
        return real_world(context, plan.budget, record=True), ""
    model = await context.resolve(spec.experience_model, "experience")
    if not spec.ignore_fidelity_floor:
        await _require_fidelity(context, model.version)
    world = await dream_world(context, model, retrieved_per_step=spec.retrieved_per_step, self_judged=spec.self_judged)
    return world, model.version


async def _require_fidelity(context: StageContext, version: str) -> None:
    """FidelityTooLowError if the experience model was not measured to be as faithful as the environment asks for."""
    floor = floor_of(load_json(context.environment.settings))
    if floor == FidelityFloor():
        return
    measured = load_json((await context.session.model(version)).fidelity or "{}") if version != "base" else {}
    shortfalls = floor.shortfalls(measured)
    if shortfalls:
        raise FidelityTooLowError(
            f"The dream of {version} is not trusted for training: {'; '.join(shortfalls)}.",
            remedy="Measure it (measure_fidelity), train it longer or on more seeds, lower the environment's "
            "fidelity_floor, or set ignore_fidelity_floor on the stage.",
        )


async def play_groups(
    context: StageContext, plan: Plan, world: World, engine: LocalEngine, curriculum: CurriculumRun, number: int
) -> tuple[list[Task], list[list[PlayedEpisode]]]:
    """An iteration's groups with their tasks; groups that teach nothing are followed by others, as the plan allows.

    The tasks of all rounds are asked for at once, so that a repeated iteration plays the same ones.
    """
    waiting = await curriculum.next_tasks(number, plan.tasks_per_iteration * (1 + plan.refill_rounds))
    tasks: list[Task] = []
    groups: list[list[PlayedEpisode]] = []
    job, stage, attempt = context.session.job_id, context.stage, context.session.attempt
    finished = 0

    def on_finished(episode: PlayedEpisode) -> None:
        nonlocal finished
        finished += 1
        share = min(1.0, finished / (plan.tasks_per_iteration * plan.group_size))
        context.metric("progress", number * 1000 + finished, (number + 0.8 * share) / plan.iterations)
        if episode.failure is not None and episode.termination is not TerminationReason.BUDGET:
            context.session.event(
                "episode.failed",
                stage=stage,
                episode=episode.id,
                code=episode.failure.code,
                reason=str(episode.failure),
            )

    wanted = plan.tasks_per_iteration
    while wanted > 0 and waiting:
        now, waiting = waiting[:wanted], waiting[wanted:]
        attempts = [
            Attempt(
                task=task,
                episode_id=f"{job}-s{stage}-a{attempt}-i{number}-{place}-{rollout}",
                world_seed=seed_of(context.session.seed, stage, number, task.id),
                sample_seed=seed_of(context.session.seed, stage, number, task.id, rollout),
            )
            for place, task in enumerate(now, len(tasks))
            for rollout in range(plan.group_size)
        ]
        played = await play_all(attempts, engine, world, plan.rollouts_of(number), context.check, on_finished)
        tasks += now
        groups += [played[i : i + plan.group_size] for i in range(0, len(played), plan.group_size)]
        if any(e.termination is TerminationReason.BUDGET for e in played):
            break
        wanted = plan.tasks_per_iteration - sum(teaches(group) for group in groups)
    return tasks, groups


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
    counted = [episode for episode in played if episode.counts]
    cut_off = sum(e.termination is TerminationReason.BUDGET for e in played)
    steps = sum(len(episode.transitions) for episode in counted)
    progress.episodes += len(played)
    progress.transitions += sum(len(episode.transitions) for episode in played)
    progress.tokens += sum(e.policy_tokens + e.environment_tokens for e in played)
    success = sum(e.success for e in counted) / len(counted) if counted else 0.0
    point = {
        "iteration": number,
        "success": success,
        "reward": scored.mean_reward,
        **numbers,
        "invalid_rate": sum(e.invalid_actions for e in counted) / steps if steps else 0.0,
        "mean_steps": steps / len(counted) if counted else 0.0,
        "groups_used": scored.groups_used,
        "groups_zero_variance": scored.groups_zero_variance,
        "groups_incomplete": scored.groups_incomplete,
        "groups_refilled": max(0, len(groups) - plan.tasks_per_iteration),
        # An episode that the budget cut off did not fail: it is left out, and counted apart.
        "failed_episodes": len(played) - len(counted) - cut_off,
        "cut_off_by_budget": cut_off,
        "synthetic_tasks": sum(bool(task.parent_id) for task in tasks),
        "rollout_seconds": played_at - started,
        "update_seconds": time.monotonic() - played_at,
        "seconds": time.monotonic() - started,
    }
    for name, value in point.items():
        key = f"{world.source}_success" if name == "success" else name
        if name != "iteration":
            context.metric(key, number, float(value))
    context.session.event("iteration.finished", stage=context.stage, **point)
    return point, played


def refuse_outage(played: Sequence[PlayedEpisode], world: World) -> None:
    """Raise the cause if most episodes failed for reasons that are not the policy's."""
    failed = [e for e in played if not e.counts and e.termination is not TerminationReason.BUDGET]
    if played and len(failed) / len(played) > MAX_FAILED_SHARE:
        cause = next((e.failure for e in failed if e.failure is not None), None)
        raise UnavailableError(
            f"{len(failed)} of {len(played)} episodes in the {world.source} environment failed: {cause}.",
            remedy=(cause.remedy if cause else "")
            or "Repair the environment, then retry the job: finished work is kept.",
        )
