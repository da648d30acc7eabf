"""What an iteration is, whatever the policy learns from it: its plan, its world, its groups and their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.core.environment_settings import settings_of
from dreamgym.core.episodes import Source, Task, TerminationReason
from dreamgym.core.errors import FidelityTooLowError, InvalidInputError, UnavailableError
from dreamgym.core.jobs import Optimizer, Rollouts, SimToReal, TrainPolicy
from dreamgym.inference.local import LocalEngine
from dreamgym.trainer.policy_update import UpdateSettings, teaches
from dreamgym.trainer.rollout import Attempt, PlayedEpisode, World, play_all, seed_of
from dreamgym.trainer.stages.context import StageContext
from dreamgym.trainer.stages.curriculum_run import CurriculumRun
from dreamgym.trainer.stages.evaluate import dream_world, real_world
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
    floor = settings_of(context.environment.settings).fidelity_floor
    if not floor.asks:
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
        context.progress((number + 0.8 * share) / plan.iterations)
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


def report_iteration(context: StageContext, world: World, point: Mapping[str, Any]) -> None:
    """Send an iteration's figures: each as a point of its curve, all as an event."""
    for name, value in point.items():
        if name != "iteration":
            key = f"{world.source}_success" if name == "success" else name
            context.metric(key, point["iteration"], float(value))
    context.session.event("iteration.finished", stage=context.stage, **point)


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
