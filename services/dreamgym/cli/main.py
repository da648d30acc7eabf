"""The `dreamgym` command."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli import demo as demos
from dreamgym.cli import local_platform
from dreamgym.cli.connection import DEFAULT_STATE, Connection, connection_of, read_admin_key
from dreamgym.cli.environment_commands import environments, import_trajectories, tasks
from dreamgym.cli.job_commands import evaluate, fidelity, jobs
from dreamgym.cli.key_commands import keys
from dreamgym.cli.model_commands import models
from dreamgym.cli.output import EXIT_CODES, JOB_FAILED, JOB_STOPPED, AsJson, CommandGroup, print_error, print_fields
from dreamgym.cli.play import play
from dreamgym.cli.report_files import report_json
from dreamgym.core.job_states import JobState

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    help="Train LLM agents on synthesized experience, without letting them touch the live system.",
)
app.add_typer(environments, name="env")
app.add_typer(tasks, name="task")
app.add_typer(jobs, name="job")
app.add_typer(models, name="model")
app.add_typer(keys, name="key")
app.command("import")(import_trajectories)
app.command("fidelity")(fidelity)
app.command("eval")(evaluate)
app.command("play")(play)


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[str, typer.Option(envvar="DREAMGYM_URL", help="The gateway's address.")] = "",
    key: Annotated[str, typer.Option(envvar="DREAMGYM_API_KEY", show_envvar=True, help="The API key.")] = "",
    state: Annotated[
        Path, typer.Option(envvar="DREAMGYM_STATE_DIR", help="State folder of the platform on this machine.")
    ] = DEFAULT_STATE,
) -> None:
    context.obj = Connection(url=url, key=key, state_dir=state)


@app.command()
def up(
    context: typer.Context,
    port: Annotated[int | None, typer.Option(help="The gateway's port (default: the last one, or a free one).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short settings, for trying it out.")] = False,
) -> None:
    """Run the whole platform on this machine until Ctrl-C."""
    state_dir = connection_of(context).state_dir

    def ready(url: str) -> None:
        print(f"ready: {url}")
        if key := read_admin_key(state_dir):
            print(f"admin key: {key}")
        print(f"state and logs: {state_dir.resolve()}. Ctrl-C stops everything.", flush=True)

    local_platform.run_until_stopped(
        state_dir, port=port, quick=quick, on_ready=ready, say=lambda line: print(line, flush=True)
    )


@app.command()
def doctor() -> None:
    """Say what this machine has and what it lacks."""
    raise typer.Exit(local_platform.describe_machine())


@app.command()
def config(context: typer.Context, as_json: AsJson = False) -> None:
    """Print the effective settings: of this command, and of services started here. Secrets stay hidden."""
    connection = connection_of(context)
    own = {
        "url": connection.url or "(from the state folder)",
        "key": "(set)" if connection.key or read_admin_key(connection.state_dir) else "(none)",
        "state_dir": str(connection.state_dir.resolve()),
    }
    print_fields({**own, **local_platform.effective_settings()}, as_json=as_json)


@app.command()
def demo(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="Everything once, in minutes; learns less.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("runs/demo"),
    examples: Annotated[Path, typer.Option(help="Folder of the recorded seeds and tasks.")] = Path(
        "examples/household"
    ),
    state: Annotated[Path | None, typer.Option(help="State folder of the platform (as before the command).")] = None,
    as_json: AsJson = False,
) -> None:
    """Start the platform, train an agent in the dream, and report honestly how it does in reality.

    With --url (or DREAMGYM_URL) the demo uses the platform that runs there instead of starting one.
    """
    connection = connection_of(context)
    running = demos.Platform(connection.address(), connection.api_key()) if connection.url else None
    wanted = demos.Demo(
        quick=quick,
        state_dir=state or connection.state_dir,
        out=out,
        examples=examples,
        stream=sys.stderr if as_json else sys.stdout,
        running=running,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a supervisor's stop is as orderly as Ctrl-C
    job, report = demos.run_demo(wanted)
    if as_json:
        print(report_json(report), end="")
    if job.state is JobState.FAILED:
        if job.error:
            print_error(job.error.as_error(), as_json=as_json)
        raise typer.Exit(JOB_FAILED)
    if job.state is not JobState.SUCCEEDED:
        raise typer.Exit(JOB_STOPPED)


if __name__ == "__main__":
    app()
