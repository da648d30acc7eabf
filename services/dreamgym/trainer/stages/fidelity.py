"""Stage `measure_fidelity`: one-step predictions on held-out real trajectories, and a floor below which the job stops."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.errors import FidelityTooLowError, InvalidInputError, ModelOutputError
from dreamgym.core.fidelity_floor import summary_of
from dreamgym.core.jobs import MeasureFidelity
from dreamgym.trainer.experience_data import AnnotatedEpisode
from dreamgym.trainer.fidelity import Prediction, Rollout, measure, measure_rollouts
from dreamgym.trainer.model_files import read_card
from dreamgym.trainer.stages.context import StageContext, Stopwatch
from dreamgym.trainer.stages.experience_model import annotate
from dreamgym.v1 import environment_pb2, environment_pb2_grpc, experience_pb2, experience_pb2_grpc
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
                context.metric("progress", finished, finished / total)
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
    rollouts = await replay(context, model.version, annotated[: spec.replayed_episodes], known)
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
    context: StageContext, model: str, annotated: Sequence[AnnotatedEpisode], known: Mapping[str, Task]
) -> list[Rollout]:
    """Play the actions of recorded episodes again in the dream, each in the world that its recording reveals."""
    stub: Any = environment_pb2_grpc.EnvironmentStub(context.channel("experience"))
    cursor = await context.replay_cursor()
    gate = asyncio.Semaphore(CONCURRENCY)

    async def play(item: AnnotatedEpisode) -> Rollout:
        episode = item.episode
        task = known.get(episode.task.id, episode.task)
        world = {"sheet": item.world_sheet, "fixed": True}
        reset = environment_pb2.Reset(
            environment_id=context.environment_id,
            task=task_to_proto(
                replace(task, initial_state=episode.transitions[0].state, metadata={**task.metadata, "world": world})
            ),
            max_steps=len(episode.transitions),
            job_id=context.session.job_id,
            experience_model=model,
            replay_cursor=cursor,
            retrieved_per_step=-1,
        )
        actions = [transition.action for transition in episode.transitions]
        async with gate:
            context.check()
            stream = stub.Play()
            try:
                dreamed = await _dreamed(stream, reset, actions, context.settings.call_deadline_s)
            except grpc.RpcError as error:
                raise error_from_rpc(error, service="experience") from error
            finally:
                stream.cancel()
        return Rollout(episode.transitions, tuple(dreamed or ()), failed=dreamed is None, instruction=task.instruction)

    return list(await asyncio.gather(*map(play, annotated)))


async def _dreamed(
    stream: Any, reset: environment_pb2.Reset, actions: Sequence[str], deadline_s: float
) -> list[Transition] | None:
    """What the dream answers to the actions until it is over; None if it breaks off with a fault."""
    found: list[Transition] = []
    await stream.write(environment_pb2.PlayRequest(reset=reset))
    seen = await _observed(stream, deadline_s)
    for action in actions:
        if seen is None or seen.done:
            break
        state = seen.state
        await stream.write(environment_pb2.PlayRequest(act=environment_pb2.Act(action=action)))
        if (seen := await _observed(stream, deadline_s)) is not None:
            found.append(transition_from_observation(state, action, seen))
    return None if seen is None else found


async def _observed(stream: Any, deadline_s: float) -> environment_pb2.Observation | None:
    try:
        answer = await asyncio.wait_for(stream.read(), deadline_s)
    except TimeoutError:
        return None
    if answer is grpc.aio.EOF or answer.WhichOneof("result") != "observation":
        return None
    observation: environment_pb2.Observation = answer.observation
    return observation
