"""gRPC edge of the curriculum service."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import orjson

from dreamgym.core.episodes import Task
from dreamgym.core.errors import InvalidInputError
from dreamgym.curriculum.generator import ExperienceGenerator
from dreamgym.curriculum.runs import Curriculum
from dreamgym.curriculum.selection import standing
from dreamgym.curriculum.settings import CurriculumSettings
from dreamgym.curriculum.store import CurriculumStore, Outcome, Run
from dreamgym.v1 import curriculum_pb2 as pb
from dreamgym.v1 import curriculum_pb2_grpc as pb_grpc
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import task_from_proto, task_to_proto
from dreamgym.wire.logs import configure_logs
from dreamgym.wire.server import serve_until_stopped, start_server

SERVICE = "dreamgym.v1.Curriculum"
DEFAULT_RETIRE_AT = 0.9


class CurriculumServicer(pb_grpc.CurriculumServicer):
    """Translates between messages and `runs.Curriculum`."""

    def __init__(self, curriculum: Curriculum) -> None:
        self._curriculum = curriculum

    async def OpenRun(self, request: pb.OpenRunRequest, context: Any) -> pb.OpenRunResponse:  # noqa: N802
        run = Run(
            run_id=request.run_id,
            environment_id=request.environment_id,
            synthetic_share=request.synthetic_share,
            seed=request.seed,
            experience_model=request.experience_model,
            retire_at=request.retire_at or DEFAULT_RETIRE_AT,
        )
        tasks, already_open = await self._curriculum.open_run(run, [_read_task(task) for task in request.tasks])
        return pb.OpenRunResponse(tasks=tasks, already_open=already_open)

    async def NextTasks(self, request: pb.NextTasksRequest, context: Any) -> pb.NextTasksResponse:  # noqa: N802
        chosen = await self._curriculum.next_tasks(request.run_id, request.iteration, request.count)
        tasks = [task_to_proto(task) for task in chosen.tasks]
        return pb.NextTasksResponse(tasks=tasks, synthetic=chosen.synthetic, retired=chosen.retired)

    async def ReportOutcomes(  # noqa: N802
        self, request: pb.ReportOutcomesRequest, context: Any
    ) -> pb.ReportOutcomesResponse:
        outcomes = [Outcome(o.task_id, tuple(o.rewards), o.failed_episodes) for o in request.outcomes]
        report = await self._curriculum.report(request.run_id, request.iteration, outcomes)
        return pb.ReportOutcomesResponse(recorded=report.recorded, generated=report.generated, rejected=report.rejected)

    async def Rewind(self, request: pb.RewindRequest, context: Any) -> pb.RewindResponse:  # noqa: N802
        return pb.RewindResponse(outcomes_discarded=await self._curriculum.rewind(request.run_id, request.iteration))

    async def Lineage(self, request: pb.LineageRequest, context: Any) -> pb.LineageResponse:  # noqa: N802
        run, tasks = await self._curriculum.lineage(request.run_id)
        return pb.LineageResponse(
            tasks=[
                pb.TaskLineage(
                    task=task_to_proto(item.task),
                    generation=item.record.generation,
                    created_iteration=item.created_iteration,
                    attempts=item.record.attempts,
                    success_rate=item.record.success_rate,
                    reward_variance=item.record.variance,
                    standing=standing(item.record, run.retire_at).value,
                )
                for item in tasks
            ]
        )


def _read_task(task: env_pb.Task) -> Task:
    try:
        return task_from_proto(task)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(f"The task {task.id!r} has a criterion or metadata that is not JSON.") from error


async def main() -> None:
    settings = CurriculumSettings()
    configure_logs("curriculum", settings.log_level)
    store = CurriculumStore(settings)
    channel = open_channel(settings.experience_address, settings)
    generator = ExperienceGenerator(channel, settings.generation_deadline_s)
    servicer = CurriculumServicer(Curriculum(store, generator, settings.generation_seeds))

    def register(server: grpc.aio.Server) -> None:
        pb_grpc.add_CurriculumServicer_to_server(servicer, server)

    server, _ = await start_server(settings.curriculum_address, settings, [register], [SERVICE])

    async def stop() -> None:
        await channel.close(None)
        await store.close()

    await serve_until_stopped(server, settings, stop)


if __name__ == "__main__":
    asyncio.run(main())
