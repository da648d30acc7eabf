"""Follows one job: its events and the points of its curves in the order in which they happened."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import select

from dreamgym.core.job_states import TERMINAL, JobState
from dreamgym.gateway.database import Database
from dreamgym.gateway.tables import Job, JobEvent, JobMetric

_AT_ONCE = 1000


@dataclass(frozen=True)
class FeedCursor:
    """What a reader has seen: the last event's and the last metric point's id. Written `EVENT.METRIC`."""

    event: int = 0
    metric: int = 0

    @classmethod
    def parse(cls, text: str | None) -> FeedCursor:
        """The cursor of a `Last-Event-ID`; anything unreadable means from the start."""
        match = re.fullmatch(r"(\d{1,18})\.(\d{1,18})", text or "")
        return cls(int(match[1]), int(match[2])) if match else cls()

    def after(self, row: JobEvent | JobMetric) -> FeedCursor:
        if isinstance(row, JobEvent):
            return FeedCursor(row.id, self.metric)
        return FeedCursor(self.event, row.id)

    def __str__(self) -> str:
        return f"{self.event}.{self.metric}"


@dataclass(frozen=True)
class FeedItem:
    """One row and the cursor that a reader has after it; a `JobState` says that the job has ended."""

    row: JobEvent | JobMetric | JobState
    cursor: FeedCursor


async def follow_job(
    database: Database, job_id: str, cursor: FeedCursor, *, poll_s: float, stopping: asyncio.Event
) -> AsyncIterator[FeedItem]:
    """Everything after `cursor`, as it comes; ends after the job's terminal event or when the gateway stops."""
    while True:
        # The state first: what a job wrote before it ended is then certainly among the rows.
        state, rows, full = await _read(database, job_id, cursor)
        for row in rows:
            cursor = cursor.after(row)
            yield FeedItem(row, cursor)
        if full:
            continue
        if state is None or state in TERMINAL:
            if state is not None:
                yield FeedItem(state, cursor)
            return
        try:
            async with asyncio.timeout(poll_s):
                await stopping.wait()
            return
        except TimeoutError:
            continue


async def _read(
    database: Database, job_id: str, cursor: FeedCursor
) -> tuple[JobState | None, list[JobEvent | JobMetric], bool]:
    async with database.transaction() as session:
        state = await session.scalar(select(Job.state).where(Job.id == job_id))
        events = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.id > cursor.event)
        points = select(JobMetric).where(JobMetric.job_id == job_id, JobMetric.id > cursor.metric)
        found_events = (await session.scalars(events.order_by(JobEvent.id).limit(_AT_ONCE))).all()
        found_points = (await session.scalars(points.order_by(JobMetric.id).limit(_AT_ONCE))).all()
    rows: list[JobEvent | JobMetric] = [*found_events, *found_points]
    # Stable: within one kind the order of ids stays.
    rows.sort(key=lambda row: row.at)
    full = max(len(found_events), len(found_points)) == _AT_ONCE
    return None if state is None else JobState(state), rows, full
