"""Finds jobs whose worker was lost and jobs that no worker was told about, again and again."""

from __future__ import annotations

import asyncio
import logging
import time

from prometheus_client import Gauge
from sqlalchemy import func, select

from dreamgym.core.errors import DreamGymError
from dreamgym.gateway.database import Database
from dreamgym.gateway.dispatch import Dispatcher
from dreamgym.gateway.job_lock import UNDER_WORK, locked_job
from dreamgym.gateway.leases import lose_lease
from dreamgym.gateway.tables import Job

log = logging.getLogger(__name__)
JOBS = Gauge("dreamgym_jobs", "Unfinished jobs by state.", ["state"])
_AT_ONCE = 100


class Sweeper:
    """Several gateways may sweep at once: each change is made under the job's lock after looking again."""

    def __init__(self, database: Database, dispatcher: Dispatcher, *, interval_s: float, lease_ttl_s: float) -> None:
        self.database = database
        self.dispatcher = dispatcher
        self.interval_s = interval_s
        self.lease_ttl_s = lease_ttl_s
        self._listen_again()

    def _listen_again(self) -> None:
        """After a time in which no heartbeat could arrive, workers get a whole lease to report before any is given up."""
        self._leases_count_from = time.monotonic() + self.lease_ttl_s

    async def run(self) -> None:
        """Sweep until cancelled; an outage of the database is waited for."""
        while True:
            try:
                await self.sweep()
            except DreamGymError as error:
                self._listen_again()
                log.warning("sweep failed", extra={"reason": str(error)})
            except Exception:  # the sweeper must outlive a fault of one job
                log.exception("sweep failed")
            await asyncio.sleep(self.interval_s)

    async def sweep(self) -> None:
        """One round."""
        lost = await self._expired() if time.monotonic() >= self._leases_count_from else []
        for job_id in lost:
            async with locked_job(self.database, job_id) as job:
                expires = job.row.lease_expires_at
                if expires is not None and expires <= job.now:
                    await lose_lease(job)
        for job_id in await self._due():
            if not await self.dispatcher.dispatch(job_id):
                break  # the broker is away: do not try it once for each job
        await self._count()

    async def _expired(self) -> list[str]:
        query = select(Job.id).where(Job.state.in_(UNDER_WORK), Job.lease_expires_at <= func.now()).limit(_AT_ONCE)
        async with self.database.transaction() as session:
            return list(await session.scalars(query))

    async def _due(self) -> list[str]:
        waiting = select(Job.id).where(Job.state == "queued", Job.dispatch_due_at <= func.now())
        async with self.database.transaction() as session:
            return list(await session.scalars(waiting.order_by(Job.dispatch_due_at, Job.id).limit(_AT_ONCE)))

    async def _count(self) -> None:
        query = select(Job.state, func.count()).where(Job.state.in_({"queued", *UNDER_WORK})).group_by(Job.state)
        async with self.database.transaction() as session:
            counts = {state: count for state, count in await session.execute(query)}
        for state in ("queued", *sorted(UNDER_WORK)):
            JOBS.labels(str(state)).set(counts.get(str(state), 0))
