"""The process that trains: leases a job, runs its stages, ends the attempt.

`python -m dreamgym.trainer.child JOB CELERY_TASK SUPERVISOR`.


Exit status: 0 the attempt ended (whatever the outcome), 3 another attempt holds the job, 4 the gateway is away.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import torch

from dreamgym.core.errors import ConflictError, DreamGymError, LeaseLostError, NotFoundError, UnavailableError
from dreamgym.trainer.exit_status import ENDED, HELD_ELSEWHERE, NO_GATEWAY
from dreamgym.trainer.session import JobSession, StopRequestedError
from dreamgym.trainer.settings import TrainerSettings
from dreamgym.trainer.stages.run import run_stages
from dreamgym.wire.logs import bound, configure_logs

log = logging.getLogger("dreamgym.trainer")


async def run(job_id: str, celery_task_id: str, supervisor: str) -> int:
    settings = TrainerSettings()
    session = JobSession(job_id, settings, celery_task_id, supervisor)
    try:
        await session.lease()
    except (ConflictError, NotFoundError) as error:
        log.warning("not leased", extra={"reason": str(error)})
        return HELD_ELSEWHERE
    except UnavailableError as error:
        log.error("no gateway", extra={"reason": str(error)})
        return NO_GATEWAY
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    try:
        result = await run_stages(session, settings)
        await session.finish("succeeded", result=result)
    except StopRequestedError as stop:
        await session.finish(stop.command, result={})
    except LeaseLostError as error:
        log.warning("lease lost", extra={"reason": str(error)})
    except asyncio.CancelledError:
        # The worker is shutting down: give the job back, its checkpoints are there.
        await session.finish("queued", result={})
    except DreamGymError as error:
        log.error("job failed", extra={"code": error.code, "reason": str(error)})
        await session.finish("failed", error=error, result={})
    except Exception as error:
        log.exception("job failed")
        unexpected = DreamGymError(
            f"{type(error).__name__}: {error}", remedy="This is a fault of DreamGym; see the log."
        )
        await session.finish("failed", error=unexpected, result={})
    finally:
        await session.close()
    return ENDED


def main() -> None:
    job_id, celery_task_id, supervisor = (*sys.argv[1:4], "", "")[:3]
    configure_logs("trainer", TrainerSettings().log_level)
    torch.set_num_threads(1)
    with bound(job=job_id):
        sys.exit(asyncio.run(run(job_id, celery_task_id, supervisor)))


if __name__ == "__main__":
    main()
