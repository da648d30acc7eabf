"""`dreamgym demo`: starts the platform and is its first customer, through the client only."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from dreamgym.cli import demo_pipeline, local_platform
from dreamgym.cli.connection import DEFAULT_STATE, read_record
from dreamgym.cli.follow import follow_job
from dreamgym.cli.memory import PeakMemory
from dreamgym.cli.report import Report, Run, build_report
from dreamgym.cli.report_files import write_report
from dreamgym.cli.report_tables import print_report
from dreamgym.client import DreamGym
from dreamgym.client.values import ImportReport, Job
from dreamgym.core.errors import DreamGymError, InvalidInputError

SEEDS = "seeds.jsonl.gz"
TASKS = tuple(f"tasks-{split}.jsonl.gz" for split in ("train", "valid", "test"))
_CANCEL_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Platform:
    """A platform to be a customer of."""

    url: str
    key: str
    object_store: str = ""
    check: Callable[[], None] = lambda: None
    """Raises if the platform can no longer serve."""


@dataclass(frozen=True)
class Demo:
    """What was asked for. `stream` takes what people read; with --json that is not stdout."""

    quick: bool
    state_dir: Path
    out: Path
    examples: Path
    stream: TextIO
    running: Platform | None = None

    def say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


def run_demo(demo: Demo) -> tuple[Job, Report]:
    """Run it to the end and write the report. Ctrl-C cancels the job, stops the platform and still writes the report."""
    started = time.monotonic()
    _require_examples(demo.examples)
    with PeakMemory() as memory, _platform(demo) as platform:
        with DreamGym(platform.url, platform.key) as client:
            job = _customer(demo, client, platform)
        run = Run(
            seconds=time.monotonic() - started,
            # Of a platform that runs elsewhere we see nothing.
            peak_memory_bytes=None if demo.running else max(memory.peak_bytes, memory.sample()),
            gateway_url=platform.url,
            object_store=platform.object_store,
            start_command="" if demo.running else _start_command(demo.state_dir),
            quick=demo.quick,
            cores=_cores(),
        )
    report = build_report(job.to_json(), run)
    written = write_report(report, demo.out)
    demo.say("")
    print_report(report, Console(file=demo.stream, width=None if demo.stream.isatty() else 140))
    demo.say("\nReport: " + ", ".join(str(path) for path in written))
    return job, report


def _customer(demo: Demo, client: DreamGym, platform: Platform) -> Job:
    """Create the environment, bring the data, launch the job, follow it."""
    environment = client.environments.create(
        demo_pipeline.ENVIRONMENT,
        description=demo_pipeline.DESCRIPTION,
        action_format=demo_pipeline.ACTION_FORMAT,
        adapter="alfworld",
        max_steps=demo_pipeline.MAX_STEPS,
    )
    demo.say(f"Environment {environment.name} ({environment.id}), real engine: {environment.adapter}")
    for name in TASKS:
        _report_upload(demo, name, client.environments.add_tasks(environment.name, demo.examples / name))
    _report_upload(demo, SEEDS, client.environments.add_trajectories(environment.name, demo.examples / SEEDS))
    job = client.jobs.launch(demo_pipeline.pipeline(quick=demo.quick))
    demo.say(f"Job {job.id}: {len(job.stages)} stages. Live curves: {platform.url}\n")
    try:
        return follow_job(client, job.id, stream=demo.stream, on_tick=platform.check)
    except KeyboardInterrupt:
        demo.say("\nCancelling the job and stopping the platform.")
        return _cancelled(client, job)


def _report_upload(demo: Demo, name: str, report: ImportReport) -> None:
    """Say what was taken and what was not; without anything there is no demo."""
    taken = report.accepted or report.episodes_stored
    known = f", {report.already_there} were there already" if report.already_there else ""
    demo.say(f"Uploaded {name}: {taken} new{known}")
    if not report.issues:
        return
    first = report.issues[0]
    refused = f"{max(report.issue_count, len(report.issues))} lines of {name} were not taken"
    reason = f"line {first.line}: {first.reason}"
    if not taken and not report.already_there:
        raise InvalidInputError(f"{refused}, and nothing else is there; {reason}", remedy=first.remedy)
    demo.say(f"  {refused}; {reason}")


def _cancelled(client: DreamGym, job: Job) -> Job:
    deadline = time.monotonic() + _CANCEL_PATIENCE_S
    with contextlib.suppress(DreamGymError):  # it may have ended meanwhile
        client.jobs.cancel(job.id)
    while not (job := client.jobs.get(job.id)).state.is_terminal and time.monotonic() < deadline:
        time.sleep(0.3)
    return job


@contextlib.contextmanager
def _platform(demo: Demo) -> Iterator[Platform]:
    if demo.running is not None:
        demo.say(f"Using the platform at {demo.running.url}")
        yield demo.running
        return
    demo.say(f"Starting the platform (state and logs in {demo.state_dir.resolve()})")
    with local_platform.running(demo.state_dir, quick=demo.quick, say=_only_faults(demo.say)) as embedded:
        record = read_record(demo.state_dir)
        platform = Platform(
            url=embedded.wiring.gateway_url,
            key=local_platform.require_admin_key(demo.state_dir),
            object_store=str(record.get("object_store") or ""),
            check=lambda: embedded.wait(0),
        )
        demo.say(f"Dashboard: {platform.url}\nAdmin key: {platform.key}")
        try:
            yield platform
        finally:
            demo.say("Stopping the platform.")


def _only_faults(say: Callable[[str], None]) -> Callable[[str], None]:
    """Services that start and stop as they should are no news in a demo."""

    def filtered(line: str) -> None:
        if any(word in line for word in ("restart", "backoff", "died", "crash", "failed", "gave up")):
            say(f"platform: {line}")

    return filtered


def _require_examples(folder: Path) -> None:
    missing = [name for name in (SEEDS, *TASKS) if not (folder / name).is_file()]
    if missing:
        raise InvalidInputError(
            f"{folder} lacks {', '.join(missing)}.",
            remedy="Run the demo in the repository's folder, give --examples, or record them with `make seeds`.",
        )


def _start_command(state_dir: Path) -> str:
    return "dreamgym up" if state_dir == DEFAULT_STATE else f"dreamgym --state {state_dir} up"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
