"""The gRPC edge for trainers: translates messages, nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson

from dreamgym.core.errors import InvalidInputError
from dreamgym.core.job_states import JobState
from dreamgym.gateway import leases, models
from dreamgym.gateway.environments import environment_by_id
from dreamgym.gateway.leases import MetricPoint, Worker
from dreamgym.gateway.state import GatewayState
from dreamgym.gateway.tables import Model
from dreamgym.gateway.tasks import core_task, list_tasks
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.v1 import jobs_pb2 as pb
from dreamgym.v1.jobs_pb2_grpc import JobsServicer
from dreamgym.wire.convert import dump_json, task_to_proto

_COMMANDS = {JobState.PAUSING: pb.JOB_COMMAND_PAUSE, JobState.CANCELLING: pb.JOB_COMMAND_CANCEL}
_PAGE = 500


class JobsService(JobsServicer):
    """`dreamgym.v1.Jobs`."""

    def __init__(self, state: GatewayState) -> None:
        self.database = state.database
        self.ttl_s = state.settings.lease_ttl_s

    async def Lease(self, request: pb.LeaseRequest, context: Any) -> pb.LeaseResponse:  # noqa: N802
        worker = Worker(request.worker, request.celery_task_id, request.process_id)
        job, stages = await leases.take_lease(self.database, request.job_id, worker, ttl_s=self.ttl_s)
        return pb.LeaseResponse(
            job_id=job.id,
            environment_id=job.environment_id,
            attempt=job.attempt,
            lease_ttl_s=self.ttl_s,
            spec=dump_json(job.spec),
            seed=job.seed,
            stages=[
                pb.StageRecord(
                    index=stage.index,
                    kind=stage.kind,
                    state=stage.state,
                    spec=dump_json(stage.spec),
                    result=dump_json(stage.result) if stage.result is not None else "",
                )
                for stage in stages
            ],
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:  # noqa: N802
        state = await leases.heartbeat(
            self.database,
            request.job_id,
            request.attempt,
            [MetricPoint(point.stage, point.name, point.step, point.value) for point in request.metrics],
            [(event.type, _object(event.data, f"events: {event.type}") or {}) for event in request.events],
            ttl_s=self.ttl_s,
        )
        return pb.HeartbeatResponse(command=_COMMANDS.get(state, pb.JOB_COMMAND_CONTINUE))

    async def StartStage(self, request: pb.StartStageRequest, context: Any) -> pb.StartStageResponse:  # noqa: N802
        await leases.start_stage(self.database, request.job_id, request.attempt, request.stage)
        return pb.StartStageResponse()

    async def FinishStage(self, request: pb.FinishStageRequest, context: Any) -> pb.FinishStageResponse:  # noqa: N802
        result = _object(request.result, "result")
        await leases.finish_stage(self.database, request.job_id, request.attempt, request.stage, request.state, result)
        return pb.FinishStageResponse()

    async def Finish(self, request: pb.FinishRequest, context: Any) -> pb.FinishResponse:  # noqa: N802
        error = None
        if request.error_code or request.error_message:
            error = {"code": request.error_code, "message": request.error_message, "remedy": request.error_remedy}
        await leases.finish(
            self.database,
            request.job_id,
            request.attempt,
            request.state,
            result=_object(request.result, "result"),
            error=error,
        )
        return pb.FinishResponse()

    async def RegisterModel(  # noqa: N802
        self, request: pb.RegisterModelRequest, context: Any
    ) -> pb.RegisterModelResponse:
        model_id = await models.register_model(
            self.database,
            request.job_id,
            request.attempt,
            role=request.model.role,
            version=request.model.version,
            location=request.model.location,
            sha256=request.model.sha256,
            manifest=_object(request.model.manifest, "model.manifest") or {},
        )
        return pb.RegisterModelResponse(id=model_id)

    async def RecordFidelity(  # noqa: N802
        self, request: pb.RecordFidelityRequest, context: Any
    ) -> pb.RecordFidelityResponse:
        await models.record_fidelity(
            self.database,
            request.job_id,
            request.attempt,
            version=request.version,
            fidelity=_object(request.fidelity, "fidelity") or {},
        )
        return pb.RecordFidelityResponse()

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.Model:  # noqa: N802
        found = await models.resolve_model(
            self.database, name=request.id, environment_id=request.environment_id, role=request.role
        )
        return _model(found)

    async def GetEnvironment(  # noqa: N802
        self, request: pb.GetEnvironmentRequest, context: Any
    ) -> pb.EnvironmentRecord:
        found = await environment_by_id(self.database, request.environment_id)
        return pb.EnvironmentRecord(
            id=found.id,
            name=found.name,
            description=found.description,
            action_format=found.action_format,
            adapter=found.adapter,
            max_steps=found.max_steps,
            settings=dump_json(found.settings),
        )

    async def ListTasks(  # noqa: N802
        self, request: pb.ListTasksRequest, context: Any
    ) -> AsyncIterator[env_pb.Task]:
        environment = await environment_by_id(self.database, request.environment_id)
        left, after = request.limit or 2**62, 0
        while left > 0:
            rows = await list_tasks(
                self.database, environment.id, splits=list(request.splits), after=after, limit=min(left, _PAGE)
            )
            for row in rows:
                yield task_to_proto(core_task(row))
            if len(rows) < min(left, _PAGE):
                return
            left, after = left - len(rows), rows[-1].number


def _model(row: Model) -> pb.Model:
    return pb.Model(
        id=row.id,
        environment_id=row.environment_id,
        role=row.role,
        version=row.version,
        location=row.location,
        sha256=row.sha256,
        manifest=dump_json(row.manifest),
        job_id=row.job_id,
        fidelity=dump_json(row.fidelity) if row.fidelity else "",
    )


def _object(text: str, field: str) -> dict[str, Any] | None:
    """The JSON object of a text field; None where it is empty."""
    if not text:
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(f"{field} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidInputError(f"{field} must be a JSON object, not {type(value).__name__}.")
    return value
