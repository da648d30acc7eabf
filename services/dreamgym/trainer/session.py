"""The trainer's side of a job: lease, heartbeats, metrics, events, and what the user asked for meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from typing import Any

import grpc

from dreamgym.core.episodes import Task
from dreamgym.core.errors import DreamGymError, LeaseLostError, UnavailableError
from dreamgym.trainer.settings import TrainerSettings
from dreamgym.v1 import jobs_pb2 as pb
from dreamgym.v1 import jobs_pb2_grpc
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import dump_json, task_from_proto
from dreamgym.wire.errors import error_from_rpc

log = logging.getLogger(__name__)


class StopRequestedError(Exception):
    """The user asked to pause or cancel; raised at the next environment step or batch."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command


class JobSession:
    """One attempt at one job. Every write carries the attempt number; a newer attempt makes this one stop."""

    def __init__(self, job_id: str, settings: TrainerSettings, celery_task_id: str = "", supervisor: str = "") -> None:
        self.job_id = job_id
        self.settings = settings
        self.supervisor = supervisor or f"{socket.gethostname()}/{os.getpid()}"
        self.celery_task_id = celery_task_id
        self.channel = open_channel(settings.jobs_address, settings)
        self.stub = jobs_pb2_grpc.JobsStub(self.channel)
        self.attempt = 0
        self.environment_id = ""
        self.seed = 0
        self.stages: list[pb.StageRecord] = []
        self._metrics: list[pb.MetricPoint] = []
        self._events: list[pb.EventRecord] = []
        self._stop: StopRequestedError | LeaseLostError | None = None
        self._beat: asyncio.Task[None] | None = None
        self._sent = asyncio.Lock()

    async def lease(self) -> None:
        """Take the job; raises ConflictError if another attempt holds it."""
        answer: pb.LeaseResponse = await self._call(
            self.stub.Lease,
            pb.LeaseRequest(
                job_id=self.job_id,
                worker=self.supervisor,
                celery_task_id=self.celery_task_id,
                process_id=os.getpid(),
            ),
        )
        self.attempt = answer.attempt
        self.environment_id = answer.environment_id
        self.seed = answer.seed
        self.stages = list(answer.stages)
        self._beat = asyncio.create_task(self._heartbeats())

    def check(self) -> None:
        """Raise StopRequestedError if the user asked to pause or cancel, LeaseLostError if this attempt is old."""
        if self._stop is not None:
            raise self._stop

    def metric(self, stage: int, name: str, step: int, value: float) -> None:
        """Note one point of a curve; it travels with the next heartbeat. Values that are not finite are left out."""
        if value == value and abs(value) != float("inf"):
            self._metrics.append(pb.MetricPoint(stage=stage, name=name, step=step, value=value))

    def event(self, type_: str, **data: Any) -> None:
        """Note one event for the job's log."""
        log.info(type_, extra={"event": data})
        self._events.append(pb.EventRecord(type=type_, data=dump_json(data)))

    async def start_stage(self, stage: int) -> None:
        await self._call(
            self.stub.StartStage, pb.StartStageRequest(job_id=self.job_id, attempt=self.attempt, stage=stage)
        )

    async def finish_stage(self, stage: int, state: str, result: dict[str, Any]) -> None:
        await self.flush()
        request = pb.FinishStageRequest(
            job_id=self.job_id, attempt=self.attempt, stage=stage, state=state, result=dump_json(result)
        )
        await self._call(self.stub.FinishStage, request)

    async def finish(self, state: str, *, error: DreamGymError | None = None, result: dict[str, Any]) -> None:
        """End the attempt and stop the heartbeats."""
        with contextlib.suppress(DreamGymError):
            await self.flush()
        if self._beat is not None:
            self._beat.cancel()
        await self._call(
            self.stub.Finish,
            pb.FinishRequest(
                job_id=self.job_id,
                attempt=self.attempt,
                state=state,
                error_code=error.code if error else "",
                error_message=error.message if error else "",
                error_remedy=error.remedy if error else "",
                result=dump_json(result),
            ),
        )

    async def register_model(self, model: pb.Model) -> str:
        answer: pb.RegisterModelResponse = await self._call(
            self.stub.RegisterModel,
            pb.RegisterModelRequest(job_id=self.job_id, attempt=self.attempt, model=model),
        )
        return answer.id

    async def record_fidelity(self, version: str, fidelity: dict[str, Any]) -> None:
        """Keep with an experience model what was measured of it."""
        await self._call(
            self.stub.RecordFidelity,
            pb.RecordFidelityRequest(
                job_id=self.job_id, attempt=self.attempt, version=version, fidelity=dump_json(fidelity)
            ),
        )

    async def newest_model(self, role: str) -> pb.Model:
        """The environment's newest model of a role. Raises ModelMissingError or NotFoundError if there is none."""
        model: pb.Model = await self._call(
            self.stub.GetModel, pb.GetModelRequest(environment_id=self.environment_id, role=role)
        )
        return model

    async def model(self, name: str) -> pb.Model:
        model: pb.Model = await self._call(self.stub.GetModel, pb.GetModelRequest(id=name))
        return model

    async def environment(self) -> pb.EnvironmentRecord:
        record: pb.EnvironmentRecord = await self._call(
            self.stub.GetEnvironment, pb.GetEnvironmentRequest(environment_id=self.environment_id)
        )
        return record

    async def tasks(self, *splits: str) -> list[Task]:
        """The environment's tasks of the given splits, in the order in which they were added."""
        request = pb.ListTasksRequest(environment_id=self.environment_id, splits=splits)
        try:
            return [task_from_proto(task) async for task in self.stub.ListTasks(request, timeout=60)]
        except grpc.RpcError as error:
            raise error_from_rpc(error, service="gateway") from error

    async def flush(self) -> None:
        """Send what is waiting, and learn what the user asked for."""
        async with self._sent:
            metrics, events = self._metrics[:2000], self._events[:500]
            request = pb.HeartbeatRequest(job_id=self.job_id, attempt=self.attempt, metrics=metrics, events=events)
            answer: pb.HeartbeatResponse = await self._call(self.stub.Heartbeat, request)
            del self._metrics[: len(metrics)], self._events[: len(events)]
        if answer.command == pb.JOB_COMMAND_PAUSE:
            self._stop = StopRequestedError("paused")
        elif answer.command == pb.JOB_COMMAND_CANCEL:
            self._stop = StopRequestedError("cancelled")

    async def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        await self.channel.close(None)

    async def _heartbeats(self) -> None:
        """Beat until the end. A gateway that is away is waited for: the lease says whether the job is still ours."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            try:
                await self.flush()
            except LeaseLostError as error:
                self._stop = error
                return
            except DreamGymError as error:
                log.warning("heartbeat failed", extra={"reason": str(error)})

    async def _call(self, method: Any, request: Any) -> Any:
        """A unary call; waits through a restart of the gateway (all these calls can be repeated)."""
        deadline = time.monotonic() + self.settings.call_deadline_s
        while True:
            try:
                return await method(request, timeout=15)
            except grpc.RpcError as error:
                typed = error_from_rpc(error, service="gateway")
                if not isinstance(typed, UnavailableError) or time.monotonic() > deadline:
                    raise typed from error
                await asyncio.sleep(0.5)
