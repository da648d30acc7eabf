"""One stage's run at the curriculum service: which tasks to play, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dreamgym.core.episodes import Task
from dreamgym.trainer.rollout import PlayedEpisode
from dreamgym.trainer.stages.context import StageContext
from dreamgym.v1 import curriculum_pb2, curriculum_pb2_grpc
from dreamgym.wire.convert import task_from_proto, task_to_proto


class CurriculumRun:
    """One stage's run at the curriculum service."""

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.stub = curriculum_pb2_grpc.CurriculumStub(context.channel("curriculum"))
        self.run_id = f"{context.session.job_id}-{context.stage}"

    async def open(self, tasks: Sequence[Task], *, synthetic_share: float, experience_model: str) -> None:
        await self._call(
            self.stub.OpenRun,
            curriculum_pb2.OpenRunRequest(
                run_id=self.run_id,
                environment_id=self.context.environment_id,
                tasks=[task_to_proto(task) for task in tasks],
                synthetic_share=synthetic_share,
                seed=self.context.session.seed,
                experience_model=experience_model,
                retire_at=0.9,
            ),
        )

    async def next_tasks(self, iteration: int, count: int) -> list[Task]:
        answer = await self._call(
            self.stub.NextTasks,
            curriculum_pb2.NextTasksRequest(run_id=self.run_id, iteration=iteration, count=count),
        )
        return [task_from_proto(task) for task in answer.tasks]

    async def report(self, iteration: int, tasks: Sequence[Task], groups: Sequence[Sequence[PlayedEpisode]]) -> None:
        outcomes = [
            curriculum_pb2.GroupOutcome(
                task_id=task.id,
                rewards=[float(e.success) for e in group if e.counts],
                failed_episodes=sum(not e.counts for e in group),
            )
            for task, group in zip(tasks, groups, strict=True)
        ]
        request = curriculum_pb2.ReportOutcomesRequest(run_id=self.run_id, iteration=iteration, outcomes=outcomes)
        answer = await self._call(self.stub.ReportOutcomes, request)
        if answer.generated or answer.rejected:
            self.context.metric("generated_tasks", iteration, float(answer.generated))

    async def rewind(self, iteration: int) -> None:
        await self._call(self.stub.Rewind, curriculum_pb2.RewindRequest(run_id=self.run_id, iteration=iteration))

    async def _call(self, method: Any, request: Any) -> Any:
        timeout_s = self.context.settings.call_deadline_s
        return await self.context.patiently("curriculum", lambda: method(request, timeout=timeout_s))
