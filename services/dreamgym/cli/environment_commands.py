"""`dreamgym env`, `dreamgym import` and `dreamgym task`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dreamgym.cli.connection import connect
from dreamgym.cli.output import FAILED, AsJson, CommandGroup, print_fields, print_json, print_rows
from dreamgym.client.values import ImportReport
from dreamgym.core.errors import InvalidInputError

environments = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Environments: what an agent acts in.")
tasks = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Tasks: what an agent is asked to do.")
_SHOWN_ISSUES = 20


@environments.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A name of your own.")],
    description: Annotated[str, typer.Option(help="The domain in words, for the models. @FILE reads a file.")] = "",
    action_format: Annotated[str, typer.Option(help="What an action looks like. @FILE reads a file.")] = "",
    adapter: Annotated[str, typer.Option(help="Bridge adapter of the real environment; none: only the dream.")] = "",
    max_steps: Annotated[int, typer.Option(min=1, help="Steps after which an episode ends.")] = 15,
    settings: Annotated[str, typer.Option(help="Further settings as a JSON object.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make an environment; repeating it with the same fields changes nothing."""
    with connect(context) as client:
        made = client.environments.create(
            name,
            description=_text_or_file(description),
            action_format=_text_or_file(action_format),
            adapter=adapter,
            max_steps=max_steps,
            settings=_object(settings, "--settings"),
        )
    print_fields(made.to_json(), as_json=as_json)


@environments.command("list")
def list_environments(context: typer.Context, as_json: AsJson = False) -> None:
    """List the environments."""
    with connect(context) as client:
        rows = [found.to_json() for found in client.environments.list()]
    empty = "No environments yet. Make one: dreamgym env create NAME --description TEXT"
    print_rows(rows, ("name", "id", "adapter", "max_steps", "created_at"), as_json=as_json, empty=empty)


@environments.command("show")
def show(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Name or id.")],
    as_json: AsJson = False,
) -> None:
    """Show an environment and what is stored for it."""
    with connect(context) as client:
        found = client.environments.get(environment).to_json()
        found["statistics"] = client.environments.statistics(environment)
    print_fields(found, as_json=as_json)


@environments.command("set")
def change(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Name or id.")],
    description: Annotated[str | None, typer.Option(help="The domain in words. @FILE reads a file.")] = None,
    action_format: Annotated[str | None, typer.Option(help="What an action looks like. @FILE reads a file.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Bridge adapter; an empty one: only the dream.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Steps after which an episode ends.")] = None,
    settings: Annotated[str | None, typer.Option(help="All settings as a JSON object.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change some fields of an environment; the others stay as they are."""
    changes = {
        "description": None if description is None else _text_or_file(description),
        "action_format": None if action_format is None else _text_or_file(action_format),
        "adapter": adapter,
        "max_steps": max_steps,
        "settings": None if settings is None else _object(settings, "--settings"),
    }
    with connect(context) as client:
        changed = client.environments.change(environment, **{k: v for k, v in changes.items() if v is not None})
    print_fields(changed.to_json(), as_json=as_json)


@environments.command("episodes")
def list_trajectories(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Name or id.")],
    source: Annotated[str | None, typer.Option(help="Only those of one source: seed, dream or real.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List stored episodes, the oldest first."""
    with connect(context) as client:
        rows = list(client.environments.trajectories(environment, source=source, limit=limit))
    fields = ("episode_id", "source", "success", "steps", "instruction")
    print_rows(rows, fields, as_json=as_json, empty="No episodes yet. Import some: dreamgym import ENVIRONMENT FILE")


@environments.command("forget")
def forget(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Name or id.")],
    episodes: Annotated[list[str] | None, typer.Argument(help="Ids of the episodes to remove.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every stored episode.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove stored episodes for good, those named or all; tasks, jobs and models stay."""
    with connect(context) as client:
        gone = client.environments.delete_trajectories(environment, episodes or (), everything=everything)
    print_fields(gone, as_json=as_json)


def import_trajectories(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Name or id of the environment.")],
    file: Annotated[
        Path, typer.Argument(help="JSON lines, one episode a line; may be gzip.", exists=True, dir_okay=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Upload recorded episodes. Lines that cannot be used are named with the remedy; the others are stored."""
    with connect(context) as client:
        report = client.environments.add_trajectories(environment, file)
    print_import(report, file, as_json=as_json)


@tasks.command("add")
def add_tasks(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Name or id of the environment.")],
    file: Annotated[
        Path, typer.Argument(help="JSON lines, one task a line; may be gzip.", exists=True, dir_okay=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Upload tasks, with their success criteria where they have one."""
    with connect(context) as client:
        report = client.environments.add_tasks(environment, file)
    print_import(report, file, as_json=as_json)


@tasks.command("list")
def list_tasks(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Name or id of the environment.")],
    split: Annotated[str | None, typer.Option(help="Only this split: train, valid, test.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List tasks."""
    with connect(context) as client:
        rows = list(client.environments.tasks(environment, split=split, limit=limit))
    empty = f"No tasks. Upload some: dreamgym task add {environment} FILE"
    print_rows(rows, ("id", "split", "instruction"), as_json=as_json, empty=empty)


def print_import(report: ImportReport, file: Path, *, as_json: bool) -> None:
    """Say what was taken and what was not; exit with 1 if there was anything that was not."""
    content = report.to_json()
    if as_json:
        print_json(content)
    else:
        numbers = {name: value for name, value in content.items() if isinstance(value, int) and value}
        print(
            f"{file}: "
            + (", ".join(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items()) or "nothing")
        )
        for issue in report.issues[:_SHOWN_ISSUES]:
            print(f"  line {issue.line}: {issue.reason} {issue.remedy}".rstrip())
        more = max(report.issue_count, len(report.issues)) - _SHOWN_ISSUES
        if more > 0:
            print(f"  and {more} more; --json shows up to 1000.")
    if report.issues:
        raise typer.Exit(FAILED)


def _text_or_file(value: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidInputError(f"{value[1:]} cannot be read: {error.strerror}.", remedy="Check the path.") from error


def _object(value: str, option: str) -> dict[str, Any]:
    if not value:
        return {}
    try:
        found = json.loads(value)
    except ValueError as error:
        raise InvalidInputError(f"{option} is not JSON: {error}.", remedy="For example: '{\"key\": 1}'.") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"{option} must be a JSON object.", remedy="For example: '{\"key\": 1}'.")
    return found
