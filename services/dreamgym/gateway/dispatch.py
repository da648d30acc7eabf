"""Sends queued jobs to the broker. The broker only wakes a worker up: the job itself and its lease are in the database.

So a message may be sent twice (the second worker finds the lease taken) or be lost (it is sent again later).
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from celery import Celery

from dreamgym.core.job_states import JobState
from dreamgym.gateway.database import Database
from dreamgym.gateway.job_lock import locked_job
from dreamgym.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)
TASK = "dreamgym.trainer.run_job"
QUEUE = "train"
_RETRY_BROKER_S = 5.0
_MAX_DOUBLINGS = 5


class Dispatcher:
    """A Celery client that never waits long and never raises."""

    def __init__(self, database: Database, settings: GatewaySettings) -> None:
        self.database = database
        self.settings = settings
        timeout_s = settings.broker_timeout_s
        self.celery = Celery("dreamgym.gateway", broker=settings.broker_url, set_as_current=False)
        self.celery.conf.update(
            task_ignore_result=True,
            task_publish_retry=False,
            broker_connection_timeout=timeout_s,
            broker_transport_options={
                "socket_connect_timeout": timeout_s,
                "socket_timeout": timeout_s,
                "retry_on_timeout": False,
                "max_retries": 0,
            },
        )

    async def dispatch(self, job_id: str) -> bool:
        """Send one queued job and write down whether that worked; False if it did not.

        Who is cancelled here (the gateway stops) still waits for the end, at most two broker timeouts: what came of it
        is written down, and the job is not left waiting for a message that never went.
        """
        work = asyncio.create_task(self._dispatch(job_id))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await work
            raise

    async def _dispatch(self, job_id: str) -> bool:
        """The next sending is put off before the message leaves, so that two gateways do not send at the same time."""
        async with locked_job(self.database, job_id) as job:
            due = job.row.dispatch_due_at
            if job.state is not JobState.QUEUED or due is None or due > job.now:
                return False
            wait_s = self.settings.redispatch_after_s * 2 ** min(job.row.dispatches, _MAX_DOUBLINGS)
            job.row.dispatches += 1
            job.row.dispatch_due_at = job.now + timedelta(seconds=wait_s)
            task_id = f"{job_id}.{job.row.attempt}.{job.row.dispatches}"
        try:
            async with asyncio.timeout(2 * self.settings.broker_timeout_s):
                await asyncio.to_thread(self._send, job_id, task_id)
        except Exception as error:  # Celery passes on the errors of whatever broker it has
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            await self._put_off(job_id, reason)
            return False
        await self._sent(job_id, task_id)
        return True

    def _send(self, job_id: str, task_id: str) -> None:
        self.celery.send_task(TASK, args=[job_id], queue=QUEUE, task_id=task_id, retry=False)

    async def _sent(self, job_id: str, task_id: str) -> None:
        async with locked_job(self.database, job_id) as job:
            job.row.dispatch_error = ""
            job.write_event("dispatch.sent", {"celery_task_id": task_id, "queue": QUEUE})

    async def _put_off(self, job_id: str, reason: str) -> None:
        async with locked_job(self.database, job_id) as job:
            if job.state is not JobState.QUEUED:  # taken, paused or cancelled meanwhile: nothing waits for the broker
                return
            job.row.dispatches -= 1
            job.row.dispatch_due_at = job.now + timedelta(seconds=_RETRY_BROKER_S)
            if not job.row.dispatch_error:  # one event for an outage, however often it is tried
                log.warning("the broker did not take a job", extra={"job": job_id, "reason": reason})
                remedy = "Nothing to do: the job waits and is sent when the broker answers. See its log."
                job.write_event("dispatch.failed", {"reason": reason, "remedy": remedy})
            job.row.dispatch_error = reason

    def close(self) -> None:
        self.celery.close()
