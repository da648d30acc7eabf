"""`dreamgym key`."""

from __future__ import annotations

from typing import Annotated

import typer

from dreamgym.cli.connection import connect
from dreamgym.cli.output import AsJson, CommandGroup, print_json, print_rows

keys = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="API keys (needs an admin key).")


@keys.command("create")
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Who or what it is for.")],
    scope: Annotated[list[str], typer.Option(help="read, write or admin; each includes those before it.")] = ["read"],  # noqa: B006
    expires_at: Annotated[
        str | None, typer.Option(help="When it ends, ISO 8601, for example 2030-01-31T00:00:00Z.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once."""
    with connect(context) as client:
        made = client.keys.create(name, scope, expires_at=expires_at)
    if as_json:
        print_json(made.to_json())
        return
    print(f"{made.key}")
    print(f"Keep it: it is not shown again. Id {made.id}, scopes {', '.join(made.scopes)}.")


@keys.command("list")
def list_keys(context: typer.Context, as_json: AsJson = False) -> None:
    """List the keys, without their secrets."""
    with connect(context) as client:
        rows = [key.to_json() for key in client.keys.list()]
    columns = ("id", "name", "scopes", "hint", "created_at", "last_used_at", "expires_at")
    print_rows(rows, columns, as_json=as_json, empty="No keys.")


@keys.command("revoke")
def revoke(
    context: typer.Context, key_id: Annotated[str, typer.Argument(help="Id of the key.")], as_json: AsJson = False
) -> None:
    """Make a key worthless at once."""
    with connect(context) as client:
        client.keys.revoke(key_id)
    if as_json:
        print_json({"id": key_id, "revoked": True})
    else:
        print(f"Key {key_id} is revoked.")
