"""`/v1/jobs`: launch, watch, steer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from dreamgym.core.job_states import JobState
from dreamgym.core.jobs import JobSpec
from dreamgym.gateway import jobs
from dreamgym.gateway.access import Reader, State, Writer
from dreamgym.gateway.job_feed import FeedCursor, FeedItem, follow_job
from dreamgym.gateway.pages import Cursor, Limit, decode_cursor, encode_cursor
from dreamgym.gateway.schemas import Job, JobPage, Metrics, MetricSeries, MetricValue
from dreamgym.gateway.tables import JobEvent

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_EXAMPLES: dict[str, Any] = {
    "pipeline": {
        "summary": "Train an agent with the defaults",
        "value": {"kind": "pipeline", "environment": "household"},
    },
    "evaluate": {
        "summary": "Measure the newest policy",
        "value": {"kind": "evaluate", "environment": "household", "where": "both", "episodes": 60},
    },
}


@router.post("", status_code=202)
async def create_job(
    spec: Annotated[JobSpec, Body(openapi_examples=_EXAMPLES)],
    writer: Writer,
    state: State,
    response: Response,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> Job:
    """Launch a job. With an `Idempotency-Key` a repeated request answers the job of the first one."""
    view, created = await jobs.create_job(state.database, writer.tenant_id, spec, idempotency_key=idempotency_key)
    response.headers["Location"] = f"/v1/jobs/{view.job.id}"
    if created:
        # The broker may be slow or away: the job is stored, and the sweeper sends it in that case.
        state.start_soon(asyncio.create_task(state.dispatcher.dispatch(view.job.id)))
    else:
        response.headers["Idempotent-Replayed"] = "true"
    return Job.of(view)


@router.get("")
async def list_jobs(
    reader: Reader,
    state: State,
    job_state: Annotated[JobState | None, Query(alias="state")] = None,
    environment: Annotated[str | None, Query(description="Name or id.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobPage:
    """The newest jobs first."""
    views = await jobs.list_jobs(
        state.database,
        reader.tenant_id,
        before=decode_cursor("jobs", cursor),
        limit=limit,
        state=job_state,
        environment=environment,
    )
    more = encode_cursor("jobs", views[-1].job.id) if len(views) == limit else None
    return JobPage(items=[Job.of(view) for view in views], next_cursor=more)


@router.get("/{job_id}")
async def get_job(job_id: str, reader: Reader, state: State) -> Job:
    """One job with its stages, results and the newest point of each curve."""
    return Job.of(await jobs.get_job(state.database, reader.tenant_id, job_id))


@router.post("/{job_id}/cancel", status_code=202)
async def cancel_job(job_id: str, writer: Writer, state: State) -> Job:
    """Stop a job; a running one stops within one environment step."""
    await jobs.cancel_job(state.database, writer.tenant_id, job_id)
    return await get_job(job_id, writer, state)


@router.post("/{job_id}/pause", status_code=202)
async def pause_job(job_id: str, writer: Writer, state: State) -> Job:
    """Stop a job at a checkpoint; `resume` goes on from it."""
    await jobs.pause_job(state.database, writer.tenant_id, job_id)
    return await get_job(job_id, writer, state)


@router.post("/{job_id}/resume", status_code=202)
async def resume_job(job_id: str, writer: Writer, state: State) -> Job:
    """Go on with a paused job."""
    await jobs.resume_job(state.database, writer.tenant_id, job_id)
    state.start_soon(asyncio.create_task(state.dispatcher.dispatch(job_id)))
    return await get_job(job_id, writer, state)


@router.post("/{job_id}/retry", status_code=202)
async def retry_job(job_id: str, writer: Writer, state: State) -> Job:
    """Try a failed job again from the stage that failed."""
    await jobs.retry_job(state.database, writer.tenant_id, job_id)
    state.start_soon(asyncio.create_task(state.dispatcher.dispatch(job_id)))
    return await get_job(job_id, writer, state)


@router.get("/{job_id}/metrics")
async def job_metrics(
    job_id: str,
    reader: Reader,
    state: State,
    name: Annotated[list[str] | None, Query(description="Only these curves.")] = None,
    stage: Annotated[int | None, Query(ge=0, le=1000)] = None,
) -> Metrics:
    """A job's curves."""
    rows = await jobs.read_metrics(state.database, reader.tenant_id, job_id, names=name or (), stage=stage)
    points = [MetricValue.of(row) for row in rows]
    return Metrics(
        series=[
            MetricSeries(stage=key[0], name=key[1], points=[(point.step, point.value) for point in group])
            for key, group in groupby(points, key=lambda point: (point.stage, point.name))
        ]
    )


async def _existing_job(job_id: str, reader: Reader, state: State) -> str:
    """Refuse before the stream begins: afterwards there is no status to refuse with."""
    return (await jobs.get_job(state.database, reader.tenant_id, job_id)).job.id


@router.get("/{job_id}/events", response_class=EventSourceResponse)
async def job_events(
    job: Annotated[str, Depends(_existing_job)],
    state: State,
    last_event_id: Annotated[str | None, Header(description="Go on after this event.")] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Everything that happened to a job and everything that will, as server-sent events.

    `job_event`: an event; `metric`: a point of a curve; `end`: the job has ended and so does the stream.
    """
    cursor = FeedCursor.parse(last_event_id)
    feed = follow_job(state.database, job, cursor, poll_s=state.settings.feed_poll_s, stopping=state.stopping)
    async for item in feed:
        yield _server_sent(item)


def _server_sent(item: FeedItem) -> ServerSentEvent:
    if isinstance(item.row, JobState):
        return ServerSentEvent(event="end", data={"state": item.row.value}, id=str(item.cursor))
    if isinstance(item.row, JobEvent):
        data = {"type": item.row.type, "data": item.row.data, "at": item.row.at.isoformat()}
        return ServerSentEvent(event="job_event", data=data, id=str(item.cursor))
    point = MetricValue.of(item.row).model_dump(mode="json")
    return ServerSentEvent(event="metric", data=point, id=str(item.cursor))
