"""gRPC edge of the experience service: the dream's Environment, and the ExperienceModel beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc

from dreamgym.core.episodes import Episode
from dreamgym.core.errors import CapacityError, ConflictError, DeadlineError, DreamGymError, InvalidInputError
from dreamgym.experience import annotator
from dreamgym.experience.engines import EnginePool, default_factories
from dreamgym.experience.episode import DreamEpisode
from dreamgym.experience.messages import observation, read_reset, read_task
from dreamgym.experience.prediction import PredictionRequest, predict_transition
from dreamgym.experience.retrieval import ReplayRetriever, Retriever
from dreamgym.experience.settings import ExperienceSettings
from dreamgym.experience.task_generation import GenerationSettings, generate_tasks
from dreamgym.experience.task_writer import write_tasks
from dreamgym.experience.teacher import Teacher
from dreamgym.inference.model_store import ModelStore
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.v1 import environment_pb2_grpc as env_grpc
from dreamgym.v1 import experience_pb2 as exp_pb
from dreamgym.v1 import experience_pb2_grpc as exp_grpc
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import episode_from_proto, task_to_proto
from dreamgym.wire.errors import failure_message
from dreamgym.wire.logs import configure_logs
from dreamgym.wire.logs import context as log_context
from dreamgym.wire.server import serve_until_stopped, start_server

log = logging.getLogger(__name__)
SERVICES = ("dreamgym.v1.Environment", "dreamgym.v1.ExperienceModel")


class DreamEnvironment(env_grpc.EnvironmentServicer):
    """Plays episodes: one stream each, within the capacity of this process."""

    def __init__(self, pool: EnginePool, retriever: Retriever, settings: ExperienceSettings) -> None:
        self._pool = pool
        self._retriever = retriever
        self._settings = settings
        self.open_episodes = 0

    async def Describe(self, request: env_pb.DescribeRequest, context: Any) -> env_pb.EnvironmentInfo:  # noqa: N802
        """What the most recently used model says about itself; the environment's own record is the gateway's."""
        card = self._pool.loaded[-1].card if self._pool.loaded else None
        return env_pb.EnvironmentInfo(
            environment_id=request.environment_id,
            kind=env_pb.ENVIRONMENT_KIND_DREAM,
            description=card.description if card else "",
            action_format=card.action_format if card else "",
            max_steps=card.max_steps if card else 0,
            capacity_left=max(0, self._settings.experience_max_episodes - self.open_episodes),
        )

    async def Play(  # noqa: N802
        self, request_iterator: AsyncIterator[env_pb.PlayRequest], context: Any
    ) -> AsyncIterator[env_pb.PlayResponse]:
        """One episode. A fault is a `Failure` in the stream; a step that failed leaves the episode as it was."""
        stack = AsyncExitStack()
        context.add_done_callback(lambda _: _in_background(stack.aclose()))
        async with stack:
            episode: DreamEpisode | None = None
            version = ""
            async for request in request_iterator:
                try:
                    if request.WhichOneof("move") == "reset":
                        if episode is not None:
                            raise ConflictError("This stream has an episode already.", remedy="Open another stream.")
                        episode, version = await self._open(request.reset, stack)
                        step = episode.first()
                    elif episode is None:
                        raise InvalidInputError("The first message of a stream must be a Reset.")
                    else:
                        step = await self._within_deadline(episode, request.act.action)
                except DreamGymError as error:
                    log.warning("step failed", extra={"code": error.code, "error": error.message})
                    yield env_pb.PlayResponse(failure=failure_message(error))
                    if episode is None:
                        return
                else:
                    yield env_pb.PlayResponse(observation=observation(step, version))

    async def _open(self, reset: env_pb.Reset, stack: AsyncExitStack) -> tuple[DreamEpisode, str]:
        limit = self._settings.experience_max_episodes
        if self.open_episodes >= limit:
            raise CapacityError(
                f"This experience service plays {limit} episodes already.",
                remedy="Lower the concurrency of rollouts, or raise DREAMGYM_EXPERIENCE_MAX_EPISODES.",
            )
        self.open_episodes += 1
        stack.callback(self._forget_one)
        wanted = read_reset(reset)
        log_context.set({**log_context.get(), "job": reset.job_id, "episode": reset.episode_id})
        model = await stack.enter_async_context(self._pool.lease(reset.experience_model))
        episode = DreamEpisode(model, self._retriever, wanted)
        stack.push_async_callback(episode.close)
        return episode, model.version

    def _forget_one(self) -> None:
        self.open_episodes -= 1

    async def _within_deadline(self, episode: DreamEpisode, action: str) -> Any:
        limit = self._settings.experience_step_deadline_s
        try:
            async with asyncio.timeout(limit):
                return await episode.act(action)
        except TimeoutError as error:
            raise DeadlineError(
                f"The experience model took longer than {limit:g} s for one step.",
                remedy="Lower the concurrency, or raise DREAMGYM_EXPERIENCE_STEP_DEADLINE_S.",
            ) from error


class ExperienceModel(exp_grpc.ExperienceModelServicer):
    """Annotation, prediction, task generation and loading."""

    def __init__(
        self, pool: EnginePool, retriever: Retriever, settings: ExperienceSettings, teacher: Teacher | None = None
    ) -> None:
        self._pool = pool
        self._retriever = retriever
        self._settings = settings
        self._teacher = teacher

    async def Annotate(  # noqa: N802
        self, request_iterator: AsyncIterator[exp_pb.AnnotateRequest], context: Any
    ) -> AsyncIterator[exp_pb.Annotation]:
        """Reads the whole stream first: episodes of one world share what any of them reveals."""
        episodes: list[Episode] = []
        names: set[str] = set()
        async for request in request_iterator:
            if len(episodes) >= self._settings.annotate_max_episodes:
                raise InvalidInputError(
                    f"More than {self._settings.annotate_max_episodes} episodes in one call.",
                    remedy="Send whole tasks in several calls, or raise DREAMGYM_ANNOTATE_MAX_EPISODES.",
                )
            episodes.append(episode_from_proto(request.episode))
            names.add(request.annotator or annotator.NAME)
        if names - {annotator.NAME, "teacher"} or len(names) > 1:
            raise InvalidInputError(f"One annotator for a call, not {sorted(names)}.", remedy="builtin or teacher.")
        annotated = await asyncio.to_thread(annotator.annotate, episodes)
        consistency = (await asyncio.to_thread(annotator.consistency_of, episodes)).model_dump_json()
        for episode, built_in in zip(episodes, annotated, strict=True):
            if names == {"teacher"}:
                lesson = await self._asked_teacher().annotate(episode)
                yield exp_pb.Annotation(
                    episode_id=episode.id,
                    reasoning=lesson.plans,
                    world_sheet=built_in.world_sheet,
                    consistency=consistency,
                    annotator=lesson.model,
                    prompt_tokens=lesson.prompt_tokens,
                    completion_tokens=lesson.completion_tokens,
                )
            else:
                yield exp_pb.Annotation(
                    episode_id=episode.id,
                    reasoning=built_in.reasoning,
                    world_sheet=built_in.world_sheet,
                    consistency=consistency,
                    annotator=annotator.NAME,
                )

    async def Predict(self, request: exp_pb.PredictRequest, context: Any) -> exp_pb.PredictResponse:  # noqa: N802
        wanted = PredictionRequest(
            environment_id=request.environment_id,
            task=read_task(request.task),
            history=tuple((turn.state, turn.action) for turn in request.history),
            world_sheet=request.world_sheet,
            exclude_episode_id=request.exclude_episode_id,
            retrieved_per_step=request.retrieved_per_step,
        )
        async with self._pool.lease(request.experience_model) as model:
            step = await predict_transition(model, self._retriever, wanted)
            return exp_pb.PredictResponse(observation=observation(step, model.version))

    async def GenerateTasks(  # noqa: N802
        self, request: exp_pb.GenerateTasksRequest, context: Any
    ) -> exp_pb.GenerateTasksResponse:
        seeds = [read_task(task) for task in request.seeds]
        settings = GenerationSettings(
            environment_id=request.environment_id,
            count=request.count,
            seed=request.seed,
            known_instructions=tuple(request.known_instructions),
        )
        async with self._pool.lease(request.experience_model) as model:
            if model.card.engine == "vllm":
                result = await write_tasks(model, seeds, settings)
            else:
                result = await asyncio.to_thread(generate_tasks, model.worlds, seeds, settings)
        return exp_pb.GenerateTasksResponse(
            tasks=[task_to_proto(task) for task in result.tasks],
            rejected=[exp_pb.RejectedTask(instruction=r.instruction, reason=r.reason) for r in result.rejected],
        )

    async def LoadModel(self, request: exp_pb.LoadModelRequest, context: Any) -> exp_pb.LoadModelResponse:  # noqa: N802
        async with self._pool.lease(request.model_version) as model:
            return exp_pb.LoadModelResponse(
                model_version=model.version, engine=model.card.engine, parameters=model.card.parameters
            )

    def _asked_teacher(self) -> Teacher:
        if self._teacher is None:
            raise InvalidInputError(
                "The teacher was asked for, but none is configured.",
                remedy="Set DREAMGYM_TEACHER_URL and DREAMGYM_TEACHER_MODEL, or use the builtin annotator.",
            )
        return self._teacher


_closing: set[asyncio.Task[None]] = set()


def _in_background(closing: Any) -> None:
    """Run a clean-up to its end although its call is gone."""
    task = asyncio.get_running_loop().create_task(closing)
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def serve(
    address: str, settings: ExperienceSettings, pool: EnginePool, retriever: Retriever, teacher: Teacher | None = None
) -> tuple[grpc.aio.Server, int]:
    """Start the service with the given parts; answers the server and its port."""
    dream = DreamEnvironment(pool, retriever, settings)
    model = ExperienceModel(pool, retriever, settings, teacher)
    return await start_server(
        address,
        settings,
        [
            lambda server: env_grpc.add_EnvironmentServicer_to_server(dream, server),
            lambda server: exp_grpc.add_ExperienceModelServicer_to_server(model, server),
        ],
        SERVICES,
    )


async def main() -> None:
    settings = ExperienceSettings()
    configure_logs("experience", settings.log_level)
    pool = EnginePool(ModelStore(settings.object_store), default_factories(settings), settings.experience_engines)
    channel = open_channel(settings.replay_address, settings)
    retriever = ReplayRetriever(channel, window_s=settings.retrieval_window_s, deadline_s=settings.call_deadline_s)
    teacher = Teacher.from_settings(settings) if settings.teacher_url else None
    server, _ = await serve(settings.experience_address, settings, pool, retriever, teacher)

    async def stop() -> None:
        if teacher is not None:
            await teacher.close()
        await pool.close()
        await channel.close(None)

    await serve_until_stopped(server, settings, stop)


if __name__ == "__main__":
    asyncio.run(main())
