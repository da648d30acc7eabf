"""A customer's side of a job: create, read, cancel, pause, resume, retry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import distinct_on, insert

from dreamgym.core.errors import ConflictError, InvalidInputError, NotFoundError
from dreamgym.core.job_states import JobState, StageState
from dreamgym.core.jobs import BUILT_IN_EXPERIENCE_MODELS, BUILT_IN_POLICIES, JobSpec, Stage, parse_job, stages_of
from dreamgym.gateway.database import Database
from dreamgym.gateway.environments import find_environment
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.job_lock import locked_job
from dreamgym.gateway.models import require_model
from dreamgym.gateway.tables import Environment, Job, JobEvent, JobMetric, JobStage

_BUILT_IN_MODELS = {"policy": BUILT_IN_POLICIES, "experience_model": BUILT_IN_EXPERIENCE_MODELS}


@dataclass(frozen=True)
class JobView:
    """A job with what one usually wants to see with it."""

    job: Job
    environment: Environment
    stages: Sequence[JobStage]
    newest_metrics: Sequence[JobMetric] = ()


def _same_spec(stored: dict[str, Any], spec: JobSpec) -> bool:
    """Whether a stored specification asks for the same; it may be older than some fields, which then have their defaults."""
    try:
        return parse_job(stored) == spec
    except InvalidInputError:  # it has a field that there is no longer
        return False


async def create_job(
    database: Database, tenant_id: str, spec: JobSpec, *, idempotency_key: str | None
) -> tuple[JobView, bool]:
    """Store a queued job and its stages; False if a job with this idempotency key is there already.

    Raises NotFoundError or ModelMissingError for what the spec names and does not exist, InvalidInputError if it asks
    for the real environment where there is none, ConflictError if the key came with another spec.
    """
    stored = spec.model_dump(mode="json")
    async with database.transaction() as session:
        environment = await find_environment(session, tenant_id, spec.environment)
        stages = stages_of(spec)
        for index, stage in enumerate(stages):
            _require_real_environment(environment, index, stage)
            for field, built_in in _BUILT_IN_MODELS.items():
                name = getattr(stage, field, "latest")
                if name not in built_in:
                    await require_model(session, tenant_id, name)
        row = {
            "id": new_id("job"),
            "tenant_id": tenant_id,
            "environment_id": environment.id,
            "kind": spec.kind,
            "name": spec.name,
            "spec": stored,
            "state": JobState.QUEUED.value,
            "seed": spec.seed,
            "idempotency_key": idempotency_key,
            "dispatch_due_at": func.now(),
        }
        statement = insert(Job).values(row).on_conflict_do_nothing(index_elements=["tenant_id", "idempotency_key"])
        job = await session.scalar(statement.returning(Job))
        if job is None:
            known = select(Job).where(Job.tenant_id == tenant_id, Job.idempotency_key == idempotency_key)
            job = (await session.scalars(known)).one()
            if not _same_spec(job.spec, spec):
                raise ConflictError(
                    f"The Idempotency-Key {idempotency_key!r} was used for job {job.id} with another spec.",
                    remedy="Use a new key for a new job.",
                )
            return JobView(job, environment, await _stages(session, job.id)), False
        rows = [
            JobStage(
                job_id=job.id,
                index=index,
                kind=stage.kind,
                spec=stage.model_dump(mode="json"),
                state=StageState.PENDING.value,
            )
            for index, stage in enumerate(stages)
        ]
        session.add_all(rows)
        session.add(JobEvent(job_id=job.id, type="job.created", data={"kind": job.kind, "stages": len(rows)}))
        return JobView(job, environment, rows), True


async def get_job(database: Database, tenant_id: str, job_id: str) -> JobView:
    """One job with its stages and the newest point of each of its curves."""
    async with database.transaction() as session:
        query = select(Job, Environment).join(Environment, Environment.id == Job.environment_id)
        found = (await session.execute(query.where(Job.tenant_id == tenant_id, Job.id == job_id))).one_or_none()
        if found is None:
            raise NotFoundError(f"There is no job {job_id!r}.", remedy="List them: GET /v1/jobs.")
        newest = (
            select(JobMetric)
            .where(JobMetric.job_id == job_id)
            .ext(distinct_on(JobMetric.stage, JobMetric.name))
            .order_by(JobMetric.stage, JobMetric.name, JobMetric.step.desc())
        )
        metrics = (await session.scalars(newest)).all()
        return JobView(found[0], found[1], await _stages(session, job_id), metrics)


async def list_jobs(
    database: Database, tenant_id: str, *, before: str | None, limit: int, state: str | None, environment: str | None
) -> list[JobView]:
    """The newest jobs first; `before` is the id of the last one that was seen."""
    async with database.transaction() as session:
        query = select(Job, Environment).join(Environment, Environment.id == Job.environment_id)
        query = query.where(Job.tenant_id == tenant_id).order_by(Job.id.desc()).limit(limit)
        if before is not None:
            query = query.where(Job.id < before)
        if state is not None:
            query = query.where(Job.state == state)
        if environment is not None:
            query = query.where(Job.environment_id == (await find_environment(session, tenant_id, environment)).id)
        found = (await session.execute(query)).all()
        wanted = select(JobStage).where(JobStage.job_id.in_([job.id for job, _ in found])).order_by(JobStage.index)
        stages = (await session.scalars(wanted)).all()
        return [JobView(job, env, [stage for stage in stages if stage.job_id == job.id]) for job, env in found]


async def cancel_job(database: Database, tenant_id: str, job_id: str) -> None:
    """Cancel at once where no worker holds the job, else ask the worker to stop."""
    async with locked_job(database, job_id, tenant_id=tenant_id) as job:
        if job.state is JobState.CANCELLING:
            return
        waits = job.state in (JobState.QUEUED, JobState.PAUSED)
        await job.change_state(JobState.CANCELLED if waits or job.state.is_terminal else JobState.CANCELLING)


async def pause_job(database: Database, tenant_id: str, job_id: str) -> None:
    """Pause at once where no worker holds the job, else ask the worker to stop at a checkpoint."""
    async with locked_job(database, job_id, tenant_id=tenant_id) as job:
        if job.state is JobState.PAUSING:
            return
        await job.change_state(JobState.PAUSED if job.state is JobState.QUEUED else JobState.PAUSING)


async def resume_job(database: Database, tenant_id: str, job_id: str) -> None:
    """Queue a paused job again."""
    async with locked_job(database, job_id, tenant_id=tenant_id) as job:
        if job.state is not JobState.PAUSED:
            raise ConflictError(
                f"Job {job_id} is {job.state} and cannot be resumed.", remedy="Only a paused job can be resumed."
            )
        await job.change_state(JobState.QUEUED, reason="resumed")


async def retry_job(database: Database, tenant_id: str, job_id: str) -> None:
    """Queue a failed job again; its finished stages are kept."""
    async with locked_job(database, job_id, tenant_id=tenant_id) as job:
        if job.state is not JobState.FAILED:
            raise ConflictError(
                f"Job {job_id} is {job.state} and cannot be retried.", remedy="Only a failed job can be retried."
            )
        await job.change_state(JobState.QUEUED, reason="retried")
        job.row.error = None
        failed = update(JobStage).where(JobStage.job_id == job_id, JobStage.state == StageState.FAILED)
        await job.session.execute(
            failed.values(state=StageState.PENDING.value, result=None, started_at=None, finished_at=None)
        )


async def read_metrics(
    database: Database, tenant_id: str, job_id: str, *, names: Sequence[str], stage: int | None
) -> list[JobMetric]:
    """The points of a job's curves in order of stage, name and step."""
    async with database.transaction() as session:
        if await session.scalar(select(Job.id).where(Job.tenant_id == tenant_id, Job.id == job_id)) is None:
            raise NotFoundError(f"There is no job {job_id!r}.", remedy="List them: GET /v1/jobs.")
        query = select(JobMetric).where(JobMetric.job_id == job_id)
        if names:
            query = query.where(JobMetric.name.in_(names))
        if stage is not None:
            query = query.where(JobMetric.stage == stage)
        return list(await session.scalars(query.order_by(JobMetric.stage, JobMetric.name, JobMetric.step)))


async def _stages(session: Any, job_id: str) -> Sequence[JobStage]:
    found = await session.scalars(select(JobStage).where(JobStage.job_id == job_id).order_by(JobStage.index))
    return list(found)


def _require_real_environment(environment: Environment, index: int, stage: Stage) -> None:
    """Refuse at once what would fail after hours of training."""
    needs_real = (
        stage.kind == "sim_to_real"
        or (stage.kind == "evaluate" and stage.where != "dream")
        or (stage.kind == "train_policy" and (stage.source == "real" or stage.canary_every > 0))
    )
    if needs_real and not environment.adapter:
        raise InvalidInputError(
            f"stages.{index} ({stage.kind}) plays in the real environment, "
            f"but environment {environment.name!r} has no adapter.",
            remedy="Create the environment with an adapter, or leave the stage out (evaluate: where = dream).",
        )
