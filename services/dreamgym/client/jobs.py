"""Jobs: launch, look, steer, follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from dreamgym.client.events import Event, follow
from dreamgym.client.paging import pages
from dreamgym.client.transport import Transport
from dreamgym.client.values import Job, Metric


class Jobs:
    """`client.jobs`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def launch(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> Job:
        """Start a job (core/jobs.py). The same `idempotency_key` always names the same job, across processes too."""
        answer = self._transport.json("POST", "/v1/jobs", json=dict(spec), idempotency_key=idempotency_key)
        return Job.model_validate(answer)

    def get(self, job_id: str) -> Job:
        return Job.model_validate(self._transport.json("GET", _path(job_id)))

    def list(
        self, *, environment: str | None = None, state: str | None = None, limit: int | None = None
    ) -> Iterator[Job]:
        """Jobs, the newest first."""
        for item in pages(self._transport, "/v1/jobs", {"environment": environment, "state": state}, limit=limit):
            yield Job.model_validate(item)

    def cancel(self, job_id: str) -> Job:
        """Ask a job to stop for good; it does within one environment step."""
        return self._steer(job_id, "cancel")

    def pause(self, job_id: str) -> Job:
        """Ask a job to stop at its next checkpoint, to be resumed later."""
        return self._steer(job_id, "pause")

    def resume(self, job_id: str) -> Job:
        """Let a paused job go on from its checkpoint."""
        return self._steer(job_id, "resume")

    def retry(self, job_id: str) -> Job:
        """Run a failed job again from its failed stage; finished stages are kept."""
        return self._steer(job_id, "retry")

    def events(self, job_id: str, *, last_event_id: str = "") -> Iterator[Event]:
        """A job's events from the beginning (or after `last_event_id`) to its end, across broken connections.

        A paused job has not ended: its events go on once it is resumed.
        """
        raw = follow(
            self._transport,
            f"{_path(job_id)}/events",
            last_event_id=last_event_id,
            is_over=lambda: self.get(job_id).state.is_terminal,
        )
        for event in raw:
            yield _unwrapped(event)
            if event.type == "end":
                return

    def metrics(self, job_id: str, *, stage: int | None = None, name: str | None = None) -> Iterator[Metric]:
        """The points of a job's curves, curve after curve."""
        answer = self._transport.json("GET", f"{_path(job_id)}/metrics", params={"stage": stage, "name": name})
        for series in answer["series"]:
            for step, value in series["points"]:
                yield Metric(stage=series["stage"], name=series["name"], step=step, value=value)

    def wait(self, job_id: str, on_event: Callable[[Event], None] = lambda event: None) -> Job:
        """Block until the job has ended; return it as it then is."""
        for event in self.events(job_id):
            on_event(event)
        return self.get(job_id)

    def _steer(self, job_id: str, verb: str) -> Job:
        return Job.model_validate(self._transport.json("POST", f"{_path(job_id)}/{verb}"))


def _unwrapped(event: Event) -> Event:
    """What happened to the job, without the envelope that sets it apart from points of curves."""
    inner = event.data.get("data")
    if event.type != "job_event" or not isinstance(inner, dict):
        return event
    return Event(str(event.data.get("type", "")), inner, event.id)


def _path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"
