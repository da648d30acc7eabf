"""`dreamgym model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.connection import connect
from dreamgym.cli.output import AsJson, CommandGroup, print_fields, print_json, print_rows

models = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Models that jobs have trained.")
ModelName = Annotated[str, typer.Argument(help="Id or version of the model.")]


@models.command("ls")
def list_models(
    context: typer.Context,
    environment: Annotated[str | None, typer.Option(help="Only those of this environment.")] = None,
    role: Annotated[str | None, typer.Option(help="Only these: policy or experience.")] = None,
    as_json: AsJson = False,
) -> None:
    """List models, the newest first."""
    with connect(context) as client:
        rows = [model.to_json() for model in client.models.list(environment=environment, role=role)]
    empty = "No models yet. Train one: dreamgym job launch ENVIRONMENT"
    print_rows(rows, ("version", "role", "id", "job_id", "created_at"), as_json=as_json, empty=empty)


@models.command("show")
def show(context: typer.Context, model: ModelName, as_json: AsJson = False) -> None:
    """Show a model and the manifest of the run that made it."""
    with connect(context) as client:
        print_fields(client.models.get(model).to_json(), as_json=as_json)


@models.command("download")
def download(
    context: typer.Context,
    model: ModelName,
    to: Annotated[Path | None, typer.Option("--to", help="The file to write (default: VERSION.tar).")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model: weights as safetensors, tokenizer and manifest in one tar file."""
    with connect(context) as client:
        found = client.models.get(model)
        written = client.models.download(found.id, to or Path(f"{found.version}.tar"))
    if as_json:
        print_json({"model": found.id, "version": found.version, "file": str(written), "bytes": written.stat().st_size})
    else:
        print(f"{written}: {written.stat().st_size} bytes. Unpack it: tar xf {written}")
