"""What every command shares: JSON or tables on stdout, errors with their remedy on stderr, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from dreamgym.core.errors import DreamGymError

FAILED, UNREACHABLE, REFUSED, NOT_FOUND, JOB_FAILED, JOB_STOPPED, INTERRUPTED = 1, 3, 4, 5, 6, 7, 130
EXIT_CODES = """\
Exit codes: 0 done, 1 the request failed, 2 wrong usage, 3 the gateway does not answer, 4 the key is missing or may not, \
5 not found, 6 the job failed, 7 the job was cancelled or paused, 130 interrupted."""
_BY_CODE = {
    "unavailable": UNREACHABLE,
    "unauthenticated": REFUSED,
    "permission_denied": REFUSED,
    "not_found": NOT_FOUND,
}

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


class CommandGroup(TyperGroup):
    """Turns the platform's errors into one line of what happened, one of what to do, and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DreamGymError as error:
            print_error(error, as_json="--json" in sys.argv)
            raise typer.Exit(_BY_CODE.get(error.code, FAILED)) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def print_error(error: DreamGymError, *, as_json: bool = False) -> None:
    """Say on stderr what happened and what to do."""
    if as_json:
        fields = {"code": error.code, "message": error.message, "remedy": error.remedy}
        print(json.dumps({"error": fields}), file=sys.stderr)
        return
    console = Console(stderr=True, soft_wrap=True)
    console.print(Text("error: ", style="bold red").append(error.message, style="not bold default"))
    if error.remedy:
        console.print(Text("what to do: ", style="bold").append(error.remedy, style="not bold"))


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """A listing: every field as JSON, or the named columns as a table, or `empty` in words."""
    found = list(rows)
    if as_json:
        print_json(found)
        return
    if not found:
        print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in found:
        table.add_row(*[Text(_shown(row.get(column))) for column in columns])
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def print_fields(value: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing: JSON, or its fields one a line; nested ones as compact JSON."""
    if as_json:
        print_json(value)
        return
    for name, content in value.items():
        if content not in (None, "", [], {}):
            print(f"{name.replace('_', ' ')}: {_shown(content)}")


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
