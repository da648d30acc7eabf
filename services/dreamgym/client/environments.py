"""Environments, their tasks and their trajectories."""

from __future__ import annotations

import builtins
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dreamgym.client.paging import pages
from dreamgym.client.transport import Content, Transport
from dreamgym.client.values import Environment, ImportReport
from dreamgym.core.errors import InvalidInputError

Upload = Path | bytes | Iterable[Mapping[str, Any]]
"""A file of JSON lines (plain or .gz), its bytes, or the records themselves."""
_CHUNK = 256 * 1024
_GZIP_MAGIC = b"\x1f\x8b"


class Environments:
    """`client.environments`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        name: str,
        *,
        description: str = "",
        action_format: str = "",
        adapter: str = "",
        max_steps: int = 15,
        settings: Mapping[str, Any] | None = None,
    ) -> Environment:
        """Make an environment, or find the very same one. Raises ConflictError if another has the name."""
        body = {
            "name": name,
            "description": description,
            "action_format": action_format,
            "adapter": adapter,
            "max_steps": max_steps,
            "settings": dict(settings or {}),
        }
        return Environment.model_validate(self._transport.json("POST", "/v1/environments", json=body))

    def get(self, environment: str) -> Environment:
        """One environment by name or id."""
        return Environment.model_validate(self._transport.json("GET", _path(environment)))

    def list(self) -> Iterator[Environment]:
        """All environments of the tenant."""
        for item in pages(self._transport, "/v1/environments"):
            yield Environment.model_validate(item)

    def add_tasks(self, environment: str, tasks: Upload, *, timeout_s: float = 600.0) -> ImportReport:
        """Upload tasks (JSON lines). Lines that cannot be used are named in the report; the others are stored."""
        return self._upload(f"{_path(environment)}/tasks", tasks, timeout_s)

    def tasks(
        self, environment: str, *, split: str | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Tasks of an environment, of one split or of all, at most `limit`."""
        return pages(self._transport, f"{_path(environment)}/tasks", {"split": split}, limit=limit)

    def add_trajectories(self, environment: str, trajectories: Upload, *, timeout_s: float = 3600.0) -> ImportReport:
        """Upload recorded episodes (JSON lines). Unusable lines are named in the report; the others are stored."""
        return self._upload(f"{_path(environment)}/trajectories", trajectories, timeout_s)

    def change(self, environment: str, **changes: Any) -> Environment:
        """Set some of description, action_format, adapter, max_steps and settings; the others stay as they are."""
        return Environment.model_validate(self._transport.json("PATCH", _path(environment), json=changes))

    def trajectories(
        self, environment: str, *, source: str | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Stored episodes without their steps, of one source or of all, at most `limit`."""
        return pages(self._transport, f"{_path(environment)}/trajectories", {"source": source}, limit=limit)

    def transitions(self, environment: str, ids: Iterable[int]) -> builtins.list[dict[str, Any]]:
        """Single stored steps, such as those that an observation names in `retrieved`, in the order of the ids."""
        wanted = [*ids]
        if not wanted:
            return []
        answer = self._transport.json("GET", f"{_path(environment)}/transitions", params={"id": wanted})
        return [dict(item) for item in answer["items"]]

    def delete_trajectories(
        self, environment: str, episode_ids: Iterable[str] = (), *, everything: bool = False
    ) -> dict[str, Any]:
        """Remove stored episodes for good, those named or all of them; answers how many episodes and transitions went."""
        query = {"all": "true"} if everything else {"episode": list(episode_ids)}
        return dict(self._transport.json("DELETE", f"{_path(environment)}/trajectories", params=query))

    def statistics(self, environment: str) -> dict[str, Any]:
        """How many episodes and transitions are stored, by source."""
        return dict(self._transport.json("GET", f"{_path(environment)}/statistics"))

    def _upload(self, path: str, upload: Upload, timeout_s: float) -> ImportReport:
        content, compressed = _opened(upload)
        headers = {"Content-Type": "application/x-ndjson", **({"Content-Encoding": "gzip"} if compressed else {})}
        answer = self._transport.json("POST", path, content=content, headers=headers, timeout_s=timeout_s)
        return ImportReport.model_validate(answer)


def _path(environment: str) -> str:
    return f"/v1/environments/{quote(environment, safe='')}"


def _opened(upload: Upload) -> tuple[Content, bool]:
    """A body that can be opened again for a retry, and whether it is gzip already."""
    if isinstance(upload, Path):
        if not upload.is_file():
            raise InvalidInputError(f"There is no file {upload}.", remedy="Give the path of a JSON lines file.")
        with upload.open("rb") as file:
            compressed = file.read(2) == _GZIP_MAGIC
        return lambda: _chunks(upload), compressed
    data = upload if isinstance(upload, bytes) else _compressed(upload)
    return lambda: iter((data,)), data.startswith(_GZIP_MAGIC)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _compressed(records: Iterable[Mapping[str, Any]]) -> bytes:
    return gzip.compress(b"".join(json.dumps(dict(record)).encode() + b"\n" for record in records), 6, mtime=0)
