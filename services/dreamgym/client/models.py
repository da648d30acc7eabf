"""Trained models: list them, fetch them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from dreamgym.client.paging import pages
from dreamgym.client.transport import Transport
from dreamgym.client.values import Model


class Models:
    """`client.models`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, *, environment: str | None = None, role: str | None = None) -> Iterator[Model]:
        """Models, the newest first; `role` is `policy` or `experience`."""
        for item in pages(self._transport, "/v1/models", {"environment": environment, "role": role}):
            yield Model.model_validate(item)

    def get(self, model: str) -> Model:
        """One model by id or version."""
        return Model.model_validate(self._transport.json("GET", f"/v1/models/{quote(model, safe='')}"))

    def download(self, model: str, target: Path) -> Path:
        """Write a model's archive to `target`, which appears only when it is complete."""
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.part")
        try:
            with (
                self._transport.stream(f"/v1/models/{quote(model, safe='')}/download") as response,
                aside.open("wb") as file,
            ):
                for chunk in response.iter_bytes():
                    file.write(chunk)
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
        return target
