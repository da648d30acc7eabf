"""Stage `evaluate`: the same held-out tasks each time, in the dream and in the real environment, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from dreamgym.core.environment_settings import settings_of
from dreamgym.core.episodes import Source, Task
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.jobs import Evaluate
from dreamgym.core.statistics import wilson
from dreamgym.inference.local import LocalEngine
from dreamgym.trainer.rollout import Attempt, PlayedEpisode, World, play_all, seed_of
from dreamgym.trainer.stages.context import ModelReference, StageContext, Stopwatch


async def run(context: StageContext, spec: Evaluate) -> dict[str, Any]:
    watch = Stopwatch()
    policy = await context.resolve(spec.policy, "policy")
    tasks = (await context.session.tasks(spec.split))[: spec.episodes]
    if not tasks:
        raise InvalidInputError(
            f"The environment {context.environment.name!r} has no tasks of split {spec.split!r}.",
            remedy="Add held-out tasks: POST /v1/environments/{env}/tasks.",
        )
    engine = LocalEngine(policy.path, policy.version, slots=context.settings.trainer_slots)
    space = context.policy_space(policy, engine)
    result: dict[str, Any] = {"label": spec.label, "policy": policy.version, "split": spec.split, "tasks": len(tasks)}
    played: list[PlayedEpisode] = []
    try:
        if spec.where in ("dream", "both"):
            world = await dream_world(context, await context.resolve(spec.experience_model, "experience"))
            world = replace(world, space=space)
            episodes = await play_tasks(context, engine, world, spec, tasks)
            result["dream"] = summary(episodes)
            played += episodes
        if spec.where in ("real", "both"):
            if not context.environment.adapter:
                raise InvalidInputError(
                    f"The environment {context.environment.name!r} has no real adapter.",
                    remedy="Create it with an adapter, or evaluate with where: dream.",
                )
            budget = spec.real_transition_budget
            world = real_world(
                context, budget if budget is not None else spec.episodes * spec.rollouts.max_steps, record=False
            )
            world = replace(world, space=space)
            episodes = await play_tasks(context, engine, world, spec, tasks)
            result["real"] = summary(episodes)
            played += episodes
    finally:
        await engine.close()
    for where in ("dream", "real"):
        if where in result:
            context.metric(f"{where}_success", context.stage, result[where]["value"])
    result["real_transitions"] = result.get("real", {}).get("transitions", 0)
    result["tokens"] = sum(e.policy_tokens + e.environment_tokens for e in played)
    result["seconds"] = watch.seconds
    return result


async def dream_world(
    context: StageContext,
    model: ModelReference,
    *,
    retrieved_per_step: int | None = None,
    self_judged: bool = False,
) -> World:
    """The dream played by one version of the experience model, with retrieval as of now."""
    return World(
        channel=context.channel("experience"),
        environment_id=context.environment_id,
        source=Source.DREAM,
        job_id=context.session.job_id,
        experience_model=model.version,
        replay_cursor=await context.replay_cursor(),
        retrieved_per_step=-1 if retrieved_per_step is None else retrieved_per_step,
        self_judged=self_judged,
        dream_share_cap=settings_of(context.environment.settings).admission.retrieved_share,
    )


def real_world(context: StageContext, budget: int, *, record: bool, budget_id: str = "") -> World:
    """The real environment through the bridge, with this stage's own budget of transitions."""
    return World(
        channel=context.channel("bridge"),
        environment_id=context.environment_id,
        source=Source.REAL,
        job_id=context.session.job_id,
        adapter=context.environment.adapter,
        transition_budget=budget,
        budget_id=budget_id or f"stage-{context.stage}",
        record=record,
    )


async def play_tasks(
    context: StageContext, engine: LocalEngine, world: World, spec: Evaluate, tasks: Sequence[Task]
) -> list[PlayedEpisode]:
    """One episode a task, with sampling seeds that depend only on (evaluation seed, task)."""
    attempts = [
        Attempt(
            task=task,
            # The attempt number keeps the ids of a restarted stage apart in the audit.
            episode_id=f"{context.session.job_id}-s{context.stage}-a{context.session.attempt}-{world.source}-{number}",
            world_seed=0,
            sample_seed=seed_of(spec.seed, task.id),
        )
        for number, task in enumerate(tasks)
    ]
    done = 0

    def finished(episode: PlayedEpisode) -> None:
        nonlocal done
        done += 1
        context.metric(f"{world.source}_episodes", done, done)

    return await play_all(attempts, engine, world, spec.rollouts, context.check, finished)


def summary(episodes: Sequence[PlayedEpisode]) -> dict[str, Any]:
    """Success with its Wilson interval over the episodes that count; the failed ones are counted apart."""
    counted = [episode for episode in episodes if episode.counts]
    steps = sum(len(episode.transitions) for episode in counted)
    by_type: dict[str, list[bool]] = {}
    for episode in counted:
        kind = str(episode.task.metadata.get("task_type", ""))
        if kind:
            by_type.setdefault(kind, []).append(episode.success)
    failures: dict[str, int] = {}
    for episode in episodes:
        if not episode.counts:
            reason = episode.failure.code if episode.failure else episode.termination.value
            failures[reason] = failures.get(reason, 0) + 1
    return {
        **asdict(wilson(sum(e.success for e in counted), len(counted))),
        "successes": sum(e.success for e in counted),
        "invalid_rate": sum(e.invalid_actions for e in counted) / steps if steps else 0.0,
        "mean_steps": steps / len(counted) if counted else 0.0,
        "failed_episodes": len(episodes) - len(counted),
        "failures": failures,
        "transitions": sum(len(e.transitions) for e in episodes),
        "per_task": {e.task.id: int(e.success) for e in counted},
        "by_type": {kind: {"n": len(wins), "success": sum(wins) / len(wins)} for kind, wins in by_type.items()},
    }
