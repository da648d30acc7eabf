"""Which gateway a command talks to, and under which key.

In this order: the options --url and --key, DREAMGYM_URL and DREAMGYM_API_KEY, then the platform that runs on this machine
(STATE/platform.json and STATE/admin.key).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dreamgym.client import DreamGym
from dreamgym.core.errors import NotFoundError, UnauthenticatedError

DEFAULT_STATE = Path("state")
RECORD, ADMIN_KEY = "platform.json", "admin.key"


@dataclass(frozen=True)
class Connection:
    """What the options and the environment say; empty text where they say nothing."""

    url: str = ""
    key: str = ""
    state_dir: Path = DEFAULT_STATE

    def address(self) -> str:
        """The gateway's URL. Raises NotFoundError if none is known."""
        url = self.url or str(read_record(self.state_dir).get("gateway_url") or "")
        if not url:
            raise NotFoundError(
                f"No gateway is named, and no platform runs with its state in {self.state_dir.resolve()}.",
                remedy="Start one with `dreamgym up`, or give --url (DREAMGYM_URL) or --state (DREAMGYM_STATE_DIR).",
            )
        return url

    def api_key(self) -> str:
        """The API key. Raises UnauthenticatedError if none is known."""
        key = self.key or read_admin_key(self.state_dir)
        if not key:
            raise UnauthenticatedError(
                "No API key is given.",
                remedy=f"Give --key or DREAMGYM_API_KEY; a local platform writes one to {self.state_dir / ADMIN_KEY}.",
            )
        return key

    def open(self) -> DreamGym:
        """A client; the caller closes it."""
        return DreamGym(self.address(), self.api_key())


def connect(context: typer.Context) -> DreamGym:
    """The client of a command's context."""
    return connection_of(context).open()


def connection_of(context: typer.Context) -> Connection:
    found = context.find_object(Connection)
    return found if isinstance(found, Connection) else Connection()


def read_record(state_dir: Path) -> dict[str, Any]:
    """What the platform that runs on this state folder published; empty if there is none."""
    try:
        record = json.loads((state_dir / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def read_admin_key(state_dir: Path) -> str:
    """The key that the local gateway made at its first start; empty if it made none here."""
    try:
        return (state_dir / ADMIN_KEY).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
