"""`dreamgym job`, and the two jobs that have a command of their own: `dreamgym fidelity` and `dreamgym eval`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dreamgym.cli.connection import connect
from dreamgym.cli.follow import follow_job
from dreamgym.cli.output import JOB_FAILED, JOB_STOPPED, AsJson, CommandGroup, print_error, print_json, print_rows
from dreamgym.cli.report import build_report
from dreamgym.cli.report_tables import print_report
from dreamgym.client import DreamGym
from dreamgym.client.values import Job
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.job_states import JobState

jobs = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Jobs: training, measuring, evaluating.")
JobId = Annotated[str, typer.Argument(help="Id of the job.")]
EnvironmentName = Annotated[str, typer.Argument(help="Name or id of the environment.")]
Watch = Annotated[bool, typer.Option("--watch/--no-watch", help="Follow it to its end.")]
SetFields = Annotated[
    list[str] | None,
    typer.Option("--set", help="A field of the job as NAME=JSON, for example --set iterations=4. Repeatable."),
]
Idempotency = Annotated[
    str | None, typer.Option("--idempotency-key", help="Launching again with the same key finds the same job.")
]


@jobs.command("launch")
def launch(
    context: typer.Context,
    environment: EnvironmentName,
    kind: Annotated[str, typer.Option(help="Kind of job; a pipeline with its defaults trains an agent.")] = "pipeline",
    spec: Annotated[Path | None, typer.Option(help="The whole job as a JSON file; - reads standard input.")] = None,
    fields: SetFields = None,
    watch: Watch = False,
    idempotency_key: Idempotency = None,
    as_json: AsJson = False,
) -> None:
    """Start a job."""
    body = {"kind": kind, **_spec(spec), "environment": environment, **_fields(fields)}
    _launch(context, body, watch=watch, as_json=as_json, idempotency_key=idempotency_key)


@jobs.command("list")
def list_jobs(
    context: typer.Context,
    environment: Annotated[str | None, typer.Option(help="Only those of this environment.")] = None,
    state: Annotated[JobState | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    with connect(context) as client:
        found = client.jobs.list(environment=environment, state=state.value if state else None, limit=limit)
        rows = [job.to_json() for job in found]
    if not as_json:
        rows = [{**row, "environment": (row.get("environment") or {}).get("name")} for row in rows]
    empty = "No jobs yet. Start one: dreamgym job launch ENVIRONMENT"
    print_rows(rows, ("id", "state", "kind", "environment", "name", "created_at"), as_json=as_json, empty=empty)


@jobs.command("show")
def show(context: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Show a job as a report, as far as it has come."""
    with connect(context) as client:
        job = client.jobs.get(job_id)
    _print_job(job, as_json=as_json)


@jobs.command("watch")
def watch_job(context: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Follow a job to its end; the exit code says how it ended. Ctrl-C stops watching, not the job."""
    with connect(context) as client:
        _watch(client, job_id, as_json=as_json)


@jobs.command("cancel")
def cancel(context: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Stop a job for good."""
    with connect(context) as client:
        _say_state(client.jobs.cancel(job_id), as_json=as_json)


@jobs.command("pause")
def pause(context: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Stop a job at its next checkpoint."""
    with connect(context) as client:
        _say_state(client.jobs.pause(job_id), as_json=as_json)


@jobs.command("resume")
def resume(context: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Let a paused job go on."""
    with connect(context) as client:
        _say_state(client.jobs.resume(job_id), as_json=as_json)


@jobs.command("retry")
def retry(context: typer.Context, job_id: JobId, as_json: AsJson = False) -> None:
    """Run a failed job again from the stage that failed."""
    with connect(context) as client:
        _say_state(client.jobs.retry(job_id), as_json=as_json)


def fidelity(
    context: typer.Context,
    environment: EnvironmentName,
    experience_model: Annotated[
        str, typer.Option(help="Which experience model: latest, an id or a version.")
    ] = "latest",
    fields: SetFields = None,
    watch: Watch = True,
    as_json: AsJson = False,
) -> None:
    """Measure how well the dream predicts held-out real trajectories."""
    body = {"kind": "measure_fidelity", "environment": environment, "experience_model": experience_model}
    _launch(context, body | _fields(fields), watch=watch, as_json=as_json)


def evaluate(
    context: typer.Context,
    environment: EnvironmentName,
    policy: Annotated[str, typer.Option(help="Which policy: latest, base, an id or a version.")] = "latest",
    where: Annotated[str, typer.Option(help="real, dream or both.")] = "both",
    episodes: Annotated[int, typer.Option(min=1, help="Tasks, one episode each.")] = 60,
    split: Annotated[str, typer.Option(help="Split of the tasks.")] = "test",
    fields: SetFields = None,
    watch: Watch = True,
    as_json: AsJson = False,
) -> None:
    """Measure a policy's success on held-out tasks."""
    body: dict[str, Any] = {"kind": "evaluate", "environment": environment, "policy": policy, "where": where}
    body |= {"episodes": episodes, "split": split}
    _launch(context, body | _fields(fields), watch=watch, as_json=as_json)


def _launch(
    context: typer.Context, body: dict[str, Any], *, watch: bool, as_json: bool, idempotency_key: str | None = None
) -> None:
    with connect(context) as client:
        job = client.jobs.launch(body, idempotency_key=idempotency_key)
        if watch:
            _watch(client, job.id, as_json=as_json)
        elif as_json:
            print_json(job.to_json())
        else:
            print(f"job {job.id} is {job.state}. Follow it: dreamgym job watch {job.id}")


def _watch(client: DreamGym, job_id: str, *, as_json: bool) -> None:
    job = follow_job(client, job_id, stream=sys.stderr if as_json else sys.stdout)
    _print_job(job, as_json=as_json)
    if job.state is JobState.FAILED:
        if job.error and not as_json:
            print_error(job.error.as_error())
        raise typer.Exit(JOB_FAILED)
    if job.state is not JobState.SUCCEEDED:
        raise typer.Exit(JOB_STOPPED)


def _print_job(job: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(job.to_json())
    else:
        print_report(build_report(job.to_json()), Console(width=None if sys.stdout.isatty() else 140))


def _say_state(job: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(job.to_json())
    else:
        print(f"job {job.id} is {job.state}")


def _spec(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"{path} is not a JSON file that can be read: {error}.", remedy="Correct it."
        ) from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"{path} must hold one JSON object.", remedy='For example: {"kind": "pipeline"}.')
    return found


def _fields(assignments: list[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"--set {assignment}: not NAME=VALUE.", remedy="For example: --set iterations=4")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value  # plain text needs no quotes
    return found
