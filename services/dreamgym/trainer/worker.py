"""The Celery worker: takes a job from the queue and supervises the process that trains it.

Torch is not imported here: a forked worker must not hold its threads. A child that is killed is started again and goes
on from its newest checkpoint; a child that ended its attempt, whatever the outcome, is not.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import uuid
from typing import Any

from celery import Celery
from celery.signals import setup_logging

from dreamgym.trainer.exit_status import ENDED, HELD_ELSEWHERE, NO_GATEWAY
from dreamgym.trainer.settings import TrainerSettings
from dreamgym.wire.logs import bound, configure_logs

log = logging.getLogger("dreamgym.worker")
settings = TrainerSettings()

app = Celery("dreamgym", broker=settings.broker_url)
app.conf.update(
    task_default_queue="train",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    # A task longer than this is delivered a second time; the lease in Postgres refuses the second copy.
    broker_transport_options={"visibility_timeout": 3600, "unacked_restore_interval": 5, "unacked_restore_throttle": 1},
)


@setup_logging.connect  # type: ignore[untyped-decorator, unused-ignore]
def _logs(**_: Any) -> None:
    configure_logs("trainer", settings.log_level)


@app.task(name="dreamgym.trainer.run_job", bind=True, max_retries=None)  # type: ignore[untyped-decorator, unused-ignore]
def run_job(task: Any, job_id: str) -> str:
    """Train one job to the end of an attempt; answers how it ended (for the log only)."""
    task_id = str(task.request.id or "")
    # Names this run of the task: only its own child may take the lease over from a child that died.
    supervisor = f"{socket.gethostname()}/{uuid.uuid4().hex[:12]}"
    with bound(job=job_id, celery_task=task_id):
        for start in range(settings.child_restarts + 1):
            child = subprocess.Popen([sys.executable, "-m", "dreamgym.trainer.child", job_id, task_id, supervisor])
            previous = signal.signal(signal.SIGTERM, lambda *_: child.terminate())  # noqa: B023
            try:
                status = child.wait()
            finally:
                signal.signal(signal.SIGTERM, previous)
            if status == ENDED:
                return "ended"
            if status == HELD_ELSEWHERE:
                return "held elsewhere"
            if status == NO_GATEWAY:
                raise task.retry(countdown=10)
            log.warning("training process died", extra={"status": status, "start": start + 1})
        raise RuntimeError(f"the training process of {job_id} died {settings.child_restarts + 1} times; see the log")
