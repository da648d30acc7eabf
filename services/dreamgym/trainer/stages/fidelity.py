"""Stage `measure_fidelity`: one-step predictions on held-out real trajectories, and a floor below which the job stops."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.errors import (
    DreamGymError,
    FidelityTooLowError,
    InvalidInputError,
    ModelOutputError,
    UnavailableError,
)
from dreamgym.core.fidelity_floor import summary_of
from dreamgym.core.jobs import MeasureFidelity
from dreamgym.trainer.experience_data import AnnotatedEpisode
from dreamgym.trainer.fidelity import Prediction, Rollout, measure, measure_rollouts
from dreamgym.trainer.model_files import read_card
from dreamgym.trainer.play_stream import PlayStream
from dreamgym.trainer.rollout import World
from dreamgym.trainer.stages.context import ModelReference, StageContext, Stopwatch
from dreamgym.trainer.stages.evaluate import dream_world
from dreamgym.trainer.stages.experience_model import annotate
from dreamgym.v1 import environment_pb2, experience_pb2, experience_pb2_grpc
from dreamgym.wire.convert import task_to_proto, termination_from_proto, transition_from_observation
from dreamgym.wire.errors import error_from_rpc

CONCURRENCY = 48


async def run(context: StageContext, spec: MeasureFidelity) -> dict[str, Any]:
    watch = Stopwatch()
    model = await context.resolve(spec.experience_model, "experience")
    heldout_tasks = set(read_card(model.path).get("heldout_tasks", ()))
    recorded = await context.episodes(Source.SEED, Source.REAL)
    heldout = [e for e in recorded if e.transitions and (e.task.id in heldout_tasks or e.task.split != "train")]
    heldout = heldout[: spec.max_episodes]
    if not heldout:
        raise InvalidInputError(
            "There are no held-out real trajectories to measure fidelity on.",
            remedy="Upload more trajectories (whole tasks are held out), or raise heldout_share.",
        )
    # The episodes' tasks as the environment knows them: with their criteria, by which the dream decides success.
    known = {task.id: task for task in await context.session.tasks()}
    annotated, _, _ = await annotate(context, heldout, "builtin")
    stub = experience_pb2_grpc.ExperienceModelStub(context.channel("experience"))
    gate = asyncio.Semaphore(CONCURRENCY)
    finished = 0
    total = sum(len(episode.transitions) for episode in heldout)

    async def predict(episode: Episode, step: int, sheet: str) -> Prediction:
        nonlocal finished
        context.check()
        request = experience_pb2.PredictRequest(
            environment_id=context.environment_id,
            experience_model=model.version,
            task=task_to_proto(known.get(episode.task.id, episode.task)),
            history=[environment_pb2.Turn(state=t.state, action=t.action) for t in episode.transitions[: step + 1]],
            world_sheet=sheet,
            exclude_episode_id=episode.id,
            retrieved_per_step=-1 if spec.retrieved_per_step is None else spec.retrieved_per_step,
        )
        real = episode.transitions[step]
        async with gate:
            try:
                answer = await stub.Predict(request, timeout=context.settings.call_deadline_s)
            except grpc.RpcError as error:
                typed = error_from_rpc(error, service="experience")
                if not isinstance(typed, ModelOutputError):
                    raise typed from error
                return Prediction(episode.task.instruction, real, None, step=step)
            finally:
                finished += 1
                context.progress(finished / total)
        seen = answer.observation
        predicted = transition_from_observation(real.state, real.action, seen)
        own_flag = termination_from_proto(seen.termination) is TerminationReason.SUCCESS
        return Prediction(
            episode.task.instruction, real, predicted, own_flag, seen.prompt_tokens + seen.completion_tokens, step
        )

    predictions = await asyncio.gather(
        *(predict(a.episode, step, a.world_sheet) for a in annotated for step in range(len(a.episode.transitions)))
    )
    measured = measure(predictions)
    context.metric("state_exact", 1, measured["state_exact"]["value"])
    rollouts = await replay(context, model, annotated[: spec.replayed_episodes], known)
    result = {
        **measured,
        "rollouts": measure_rollouts(rollouts),
        "experience_model": model.version,
        "episodes": len(heldout),
        "seconds": watch.seconds,
    }
    if model.version != "base":
        await context.session.record_fidelity(model.version, summary_of(result))
    exact, f1 = measured["state_exact"]["value"], measured["success"]["f1"]
    if exact < spec.minimum_state_accuracy or (f1 or 0.0) < spec.minimum_success_f1:
        context.session.event("stage.note", stage=context.stage, text="below the fidelity floor", result=result)
        raise FidelityTooLowError(
            f"The experience model {model.version} predicts {exact:.0%} of held-out states exactly (success F1 {f1}); the job "
            f"asks for {spec.minimum_state_accuracy:.0%} and {spec.minimum_success_f1:.2f}.",
            remedy="Train it longer or on more seeds, or lower the floor in the measure_fidelity stage.",
        )
    return result


async def replay(
    context: StageContext, model: ModelReference, annotated: Sequence[AnnotatedEpisode], known: Mapping[str, Task]
) -> list[Rollout]:
    """Play the actions of recorded episodes again in the dream, each in the world that its recording reveals.

    Nothing stored of an episode's own task is retrieved: the recorded step itself would be the nearest.
    """
    dream = replace(await dream_world(context, model), exclude_own_task=True)
    gate = asyncio.Semaphore(CONCURRENCY)

    async def play(item: AnnotatedEpisode) -> Rollout:
        async with gate:
            context.check()
            return await _replayed(dream, item, known, context.settings.call_deadline_s)

    return list(await asyncio.gather(*map(play, annotated)))


async def _replayed(dream: World, item: AnnotatedEpisode, known: Mapping[str, Task], deadline_s: float) -> Rollout:
    real = item.episode.transitions
    task = known.get(item.episode.task.id, item.episode.task)
    world = {"sheet": item.world_sheet, "fixed": True}
    task = replace(task, initial_state=real[0].state, metadata={**task.metadata, "world": world})
    stream = PlayStream(dream.channel, "dream environment", item.episode.id, deadline_s)
    dreamed: list[Transition] = []
    failed = False
    try:
        seen = await stream.reset(dream.reset(task, "", 0, len(real), ""))
        for transition in real:
            if seen.done:
                break
            state, seen = seen.state, await stream.act(transition.action)
            dreamed.append(transition_from_observation(state, transition.action, seen))
    except UnavailableError:
        raise
    except DreamGymError:  # a fault of this episode
        failed = True
    finally:
        await stream.close()
    return Rollout(real, tuple(dreamed), failed, task.instruction)
