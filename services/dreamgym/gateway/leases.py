"""A worker's side of a job: take it, report, finish. Every write carries the attempt that the lease gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import select, text

from dreamgym.core.errors import ConflictError, InvalidInputError, NotFoundError
from dreamgym.core.job_states import JobState, StageState
from dreamgym.gateway.database import Database
from dreamgym.gateway.job_lock import UNDER_WORK, LockedJob, locked_job
from dreamgym.gateway.tables import Job, JobStage

_FINAL_STAGES = frozenset({StageState.SUCCEEDED, StageState.FAILED, StageState.SKIPPED})
_ENDS = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED, JobState.QUEUED})
# A worker that stops for one reason while the user asked for another: the user's wish counts.
_WANTED = {
    (JobState.PAUSING, JobState.QUEUED): JobState.PAUSED,
    (JobState.CANCELLING, JobState.QUEUED): JobState.CANCELLED,
    (JobState.CANCELLING, JobState.PAUSED): JobState.CANCELLED,
}
# A resumed attempt repeats points: the newer one replaces the older and gets a new id, so that readers see it.
_STORE_METRICS = text(
    """
    INSERT INTO platform.job_metrics (job_id, stage, name, step, value)
    SELECT :job_id, stage, name, step, value
    FROM unnest(CAST(:stages AS int[]), CAST(:names AS text[]), CAST(:steps AS bigint[]),
                CAST(:values AS double precision[])) AS point (stage, name, step, value)
    ON CONFLICT (job_id, stage, name, step)
    DO UPDATE SET id = DEFAULT, value = excluded.value, at = excluded.at
    """
)


@dataclass(frozen=True)
class MetricPoint:
    stage: int
    name: str
    step: int
    value: float


@dataclass(frozen=True)
class Worker:
    name: str
    celery_task_id: str
    process_id: int


async def take_lease(
    database: Database, job_id: str, worker: Worker, *, ttl_s: float
) -> tuple[Job, Sequence[JobStage]]:
    """Give a queued job, or one whose lease ran out, to `worker`. Its `attempt` is the fencing token.

    A worker that asks again for the job that it holds has lost its training process, and knows it: the lease moves on at once.
    Raises ConflictError if the job is held by another worker or does not wait for one: the message was a duplicate.
    """
    async with locked_job(database, job_id) as job:
        row = job.row
        expired = row.lease_expires_at is not None and row.lease_expires_at <= job.now
        restarted = job.state in UNDER_WORK and row.worker == worker.name
        if expired or restarted:
            await lose_lease(job)
        if job.state is not JobState.QUEUED:
            raise ConflictError(
                f"Job {job_id} cannot be taken: it is {row.state}"
                + (f", held by {row.worker} (attempt {row.attempt})." if job.state in UNDER_WORK else "."),
                remedy="Drop this message; a job that waits is sent again.",
            )
        row.attempt += 1
        row.lease_expires_at = job.now + timedelta(seconds=ttl_s)
        row.worker, row.celery_task_id, row.pid = worker.name, worker.celery_task_id, worker.process_id
        row.started_at = row.started_at or job.now
        row.error = None
        await job.change_state(JobState.RUNNING, worker=worker.name, process_id=worker.process_id)
        return row, await _stages(job)


async def lose_lease(job: LockedJob) -> None:
    """The worker is gone: queue the job again, or do at once what it was asked to do."""
    new = {JobState.PAUSING: JobState.PAUSED, JobState.CANCELLING: JobState.CANCELLED}.get(job.state, JobState.QUEUED)
    job.write_event("lease.lost", {"worker": job.row.worker, "attempt": job.row.attempt})
    await job.change_state(new, reason="The worker stopped reporting.")


async def heartbeat(
    database: Database,
    job_id: str,
    attempt: int,
    metrics: Sequence[MetricPoint],
    events: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    ttl_s: float,
) -> JobState:
    """Renew the lease, store what the worker measured, and answer the state that the user wants.

    Raises LeaseLostError if `attempt` is not the newest.
    """
    async with locked_job(database, job_id, attempt=attempt) as job:
        job.row.lease_expires_at = job.now + timedelta(seconds=ttl_s)
        if metrics:
            # One statement may not touch a row twice: of repeated points the last counts.
            points = {(point.stage, point.name, point.step): point for point in metrics}.values()
            await job.session.execute(
                _STORE_METRICS,
                {
                    "job_id": job_id,
                    "stages": [point.stage for point in points],
                    "names": [point.name for point in points],
                    "steps": [point.step for point in points],
                    "values": [point.value if math.isfinite(point.value) else math.nan for point in points],
                },
            )
        for kind, data in events:
            job.write_event(kind, data)
        return job.state


async def start_stage(database: Database, job_id: str, attempt: int, index: int) -> None:
    """Mark a stage as running; repeating the call changes nothing."""
    async with locked_job(database, job_id, attempt=attempt) as job:
        stage = await _stage(job, index)
        if stage.state == StageState.RUNNING:
            return
        if stage.state in (StageState.SUCCEEDED, StageState.SKIPPED):
            raise ConflictError(
                f"Stage {index} of job {job_id} is {stage.state} already.", remedy="Go on with the next stage."
            )
        stage.state = StageState.RUNNING.value
        stage.started_at = stage.started_at or job.now
        stage.finished_at = None
        job.write_event("stage.started", {"stage": index, "kind": stage.kind, "attempt": attempt})


async def finish_stage(
    database: Database, job_id: str, attempt: int, index: int, state: str, result: dict[str, Any] | None
) -> None:
    """Store how a stage ended and what it found."""
    if state not in _FINAL_STAGES:
        raise InvalidInputError(f"A stage cannot end as {state!r}.", remedy="Use succeeded, failed or skipped.")
    async with locked_job(database, job_id, attempt=attempt) as job:
        stage = await _stage(job, index)
        repeated = stage.state == state and stage.result == result
        stage.state = state
        stage.result = result
        stage.started_at = stage.started_at or job.now
        stage.finished_at = job.now
        if not repeated:
            job.write_event("stage.finished", {"stage": index, "kind": stage.kind, "state": state})


async def finish(
    database: Database,
    job_id: str,
    attempt: int,
    state: str,
    *,
    result: dict[str, Any] | None,
    error: dict[str, Any] | None,
) -> None:
    """End an attempt. Raises ConflictError if the job may not become `state`."""
    if state not in _ENDS:
        raise InvalidInputError(
            f"An attempt cannot end as {state!r}.", remedy=f"Use one of {', '.join(sorted(_ENDS))}."
        )
    async with locked_job(database, job_id, attempt=attempt) as job:
        if result is not None:
            job.row.result = result
        job.row.error = error if state == JobState.FAILED else None
        new = _WANTED.get((job.state, JobState(state)), JobState(state))
        await job.change_state(new, **({"error": error} if error else {}))


async def _stages(job: LockedJob) -> Sequence[JobStage]:
    query = select(JobStage).where(JobStage.job_id == job.row.id).order_by(JobStage.index)
    return (await job.session.scalars(query.execution_options(populate_existing=True))).all()


async def _stage(job: LockedJob, index: int) -> JobStage:
    stage = await job.session.get(JobStage, (job.row.id, index))
    if stage is None:
        raise NotFoundError(f"Job {job.row.id} has no stage {index}.", remedy="Stages are counted from 0.")
    return stage
