"""States of jobs and their stages, and the only transitions that are allowed between them."""

from __future__ import annotations

from enum import StrEnum

from dreamgym.core.errors import ConflictError


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


class StageState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.PAUSED, JobState.FAILED}),
    # running -> queued: the worker was lost and the job waits for another one.
    JobState.RUNNING: frozenset(
        {
            JobState.QUEUED,
            JobState.PAUSING,
            JobState.CANCELLING,
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.PAUSING: frozenset({JobState.PAUSED, JobState.CANCELLING, JobState.SUCCEEDED, JobState.FAILED}),
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED}),
    JobState.SUCCEEDED: frozenset(),
    # failed -> queued: the user retries; finished stages are kept.
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset(),
}


def require_transition(job_id: str, old: JobState, new: JobState) -> None:
    """Raise ConflictError if a job may not go from `old` to `new`."""
    if new not in TRANSITIONS[old]:
        allowed = ", ".join(sorted(TRANSITIONS[old])) or "none: it is final"
        raise ConflictError(
            f"Job {job_id} is {old} and cannot become {new}.", remedy=f"From {old} it can become: {allowed}."
        )
