"""The one way to change a job: under the lock of its row, by an allowed transition, with an event for each change.

The lock orders all writes of one job: ids of its events and metrics grow in commit order, so that a reader that
remembers the last id it saw misses nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from dreamgym.core.errors import LeaseLostError, NotFoundError
from dreamgym.core.job_states import JobState, StageState, require_transition
from dreamgym.gateway.database import Database
from dreamgym.gateway.tables import Job, JobEvent, JobStage

UNDER_WORK = frozenset({JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING})
"""States in which a worker holds the lease."""

_INTERRUPTED_STAGE = {
    JobState.QUEUED: StageState.PENDING,
    JobState.PAUSED: StageState.PENDING,
    JobState.FAILED: StageState.FAILED,
    JobState.CANCELLED: StageState.SKIPPED,
    JobState.SUCCEEDED: StageState.SUCCEEDED,
}


class LockedJob:
    """A job's row, locked until the transaction ends."""

    def __init__(self, session: AsyncSession, row: Job, now: datetime) -> None:
        self.session = session
        self.row = row
        self.now = now  # the database's clock, the only one that leases are measured with

    @property
    def state(self) -> JobState:
        return JobState(self.row.state)

    def write_event(self, kind: str, data: Mapping[str, Any]) -> None:
        self.session.add(JobEvent(job_id=self.row.id, type=kind, data=dict(data)))

    async def change_state(self, new: JobState, **data: Any) -> None:
        """Go to `new`. Raises ConflictError if that is not allowed from the present state."""
        old = self.state
        require_transition(self.row.id, old, new)
        self.row.state = new.value
        self.row.finished_at = self.now if new.is_terminal else None
        self.row.dispatch_due_at = self.now if new is JobState.QUEUED else None
        if new is JobState.QUEUED:
            self.row.dispatches = 0
        if new not in UNDER_WORK:
            self.row.lease_expires_at = None
            await self._settle_stages(new)
        self.write_event("job.state", {"from": old.value, "to": new.value, "attempt": self.row.attempt, **data})

    def require_attempt(self, attempt: int) -> None:
        """Raise LeaseLostError unless `attempt` still holds the job."""
        if self.row.attempt != attempt or self.state not in UNDER_WORK:
            raise LeaseLostError(
                f"Attempt {attempt} does not hold job {self.row.id} any more: "
                f"it is {self.row.state} and its newest attempt is {self.row.attempt}.",
                remedy="Stop this worker's process; what it wrote since its last checkpoint is done again.",
            )

    async def _settle_stages(self, new: JobState) -> None:
        """A stage does not run when its job does not."""
        state = _INTERRUPTED_STAGE[new]
        values: dict[str, Any] = {"state": state.value}
        if new.is_terminal:
            values["finished_at"] = self.now
        mine = update(JobStage).where(JobStage.job_id == self.row.id)
        await self.session.execute(mine.where(JobStage.state == StageState.RUNNING).values(values))
        if new is JobState.CANCELLED:
            pending = mine.where(JobStage.state == StageState.PENDING)
            await self.session.execute(pending.values(state=StageState.SKIPPED.value))


@asynccontextmanager
async def locked_job(
    database: Database, job_id: str, *, tenant_id: str | None = None, attempt: int | None = None
) -> AsyncIterator[LockedJob]:
    """Lock a job for one transaction. Raises NotFoundError; with `attempt` LeaseLostError if that is not the holder."""
    async with database.transaction() as session:
        query = select(Job, func.clock_timestamp()).where(Job.id == job_id).with_for_update()
        if tenant_id is not None:
            query = query.where(Job.tenant_id == tenant_id)
        found = (await session.execute(query)).one_or_none()
        if found is None:
            raise NotFoundError(f"There is no job {job_id!r}.", remedy="List them: GET /v1/jobs.")
        job = LockedJob(session, found[0], found[1])
        if attempt is not None:
            job.require_attempt(attempt)
        yield job
