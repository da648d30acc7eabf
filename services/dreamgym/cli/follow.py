"""Following a job live: bars and metrics on a terminal, plain lines elsewhere."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dreamgym.cli.progress import Progress
from dreamgym.cli.report_format import duration
from dreamgym.client import DreamGym, Event
from dreamgym.client.values import Job
from dreamgym.core.errors import DreamGymError, UnavailableError
from dreamgym.core.job_states import StageState

_LOOK_S = 2.0
_METRICS_LINE_S = 20.0
_PATIENCE_S = 90.0
"""How long a gateway may be away before watching gives up."""
_SIGNS = {
    StageState.PENDING: ("·", "dim"),
    StageState.RUNNING: ("▶", "cyan"),
    StageState.SUCCEEDED: ("✓", "green"),
    StageState.FAILED: ("✗", "red"),
    StageState.SKIPPED: ("–", "yellow"),
}


def follow_job(
    client: DreamGym,
    job_id: str,
    *,
    stream: TextIO | None = None,
    on_tick: Callable[[], None] = lambda: None,
    live: bool | None = None,
) -> Job:
    """Show a job until it has ended or is paused; return it as it then is.

    `on_tick` is called a few times a second at most and may raise to stop following. KeyboardInterrupt passes through:
    the job itself goes on.
    """
    stream = stream or sys.stdout
    console = Console(file=stream)
    progress = Progress(client.jobs.get(job_id))
    source = _EventThread(client, job_id)
    source.start()
    try:
        if console.is_terminal if live is None else live:
            with Live(console=console, refresh_per_second=4, get_renderable=lambda: _picture(progress)):
                _run(client, progress, source, on_tick, lambda line: None)
            return progress.job
        _run(client, progress, source, on_tick, lambda line: print(line, file=stream, flush=True))
    finally:
        source.stop()
    return progress.job


class _EventThread(threading.Thread):
    """Reads the event stream aside, so that the picture moves while nothing happens."""

    def __init__(self, client: DreamGym, job_id: str) -> None:
        super().__init__(name="job-events", daemon=True)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._client, self._job_id = client, job_id
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            for event in self._client.jobs.events(self._job_id):
                self.events.put(event)
                if self._stopped.is_set():
                    return
        except DreamGymError as error:  # the follower still looks at the job itself, and meets the same fault there
            self.events.put(Event("events.lost", {"message": str(error)}))

    def stop(self) -> None:
        self._stopped.set()


def _run(
    client: DreamGym,
    progress: Progress,
    source: _EventThread,
    on_tick: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    looked = measured = answered = time.monotonic()
    while True:
        news = _drain(source.events, wait_s=0.5)
        for event in news:
            line = progress.take_event(event)
            if line:
                say(f"{datetime.now():%H:%M:%S}  {line}")
        on_tick()
        now = time.monotonic()
        if progress.is_still and not news:
            return
        if news or now - looked > _LOOK_S:
            try:
                progress.look(client.jobs.get(progress.job.id))
                answered = now
            except UnavailableError:  # a gateway that restarts must not end the watch
                if now - answered > _PATIENCE_S:
                    raise
            looked = now
        if now - measured > _METRICS_LINE_S:
            measured = now
            for stage in progress.job.stages:
                if stage.state is StageState.RUNNING and (values := progress.measurements(stage)):
                    share = progress.fraction(stage)
                    done = f" {share:.0%}" if share is not None else ""
                    say(f"{datetime.now():%H:%M:%S}  {progress.name(stage.index)}{done}  {values}")


def _drain(events: queue.SimpleQueue[Event], wait_s: float) -> list[Event]:
    """Every event that is there; waits for a first one up to `wait_s`."""
    found: list[Event] = []
    try:
        found.append(events.get(timeout=wait_s))
        while True:
            found.append(events.get_nowait())
    except queue.Empty:
        return found


def _picture(progress: Progress) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    for width in (1, None, 24, 5, 12):
        table.add_column(width=width, no_wrap=True)
    table.add_column(ratio=1)
    for stage in progress.job.stages:
        sign, style = _SIGNS[stage.state]
        share = progress.fraction(stage)
        running = stage.state is StageState.RUNNING
        bar = ProgressBar(total=1.0, completed=share or 0.0, width=24, pulse=running and share is None)
        table.add_row(
            Text(sign, style=style),
            Text(progress.name(stage.index), style="" if stage.state is not StageState.PENDING else "dim"),
            bar,
            Text(f"{share:.0%}" if share is not None and running else ""),
            Text(_time(stage.started_at, stage.finished_at), style="dim"),
            Text(progress.measurements(stage) if running else "", style="cyan"),
        )
    lines = [Text(f"  {line}", style="dim", overflow="ellipsis", no_wrap=True) for line in progress.last_events]
    return Group(Text(f"job {progress.job.id}: {progress.job.state}", style="bold"), table, *lines)


def _time(started: datetime | None, finished: datetime | None) -> str:
    if started is None:
        return ""
    end = finished or datetime.now(started.tzinfo)
    return duration(max(0.0, (end - started).total_seconds()))
