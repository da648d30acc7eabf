"""API keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from dreamgym.client.paging import pages
from dreamgym.client.transport import Transport
from dreamgym.client.values import Key


class Keys:
    """`client.keys`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, scopes: Sequence[str] = ("read",), *, expires_at: str | None = None) -> Key:
        """Make a key; the secret is in this answer only, so the request is sent once.

        Scopes: read, write, admin; each includes those before it. `expires_at`: ISO 8601.
        """
        body: dict[str, Any] = {"name": name, "scopes": list(scopes)}
        if expires_at:
            body["expires_at"] = expires_at
        return Key.model_validate(self._transport.json("POST", "/v1/keys", json=body, retried=False))

    def list(self) -> Iterator[Key]:
        for item in pages(self._transport, "/v1/keys"):
            yield Key.model_validate(item)

    def revoke(self, key_id: str) -> None:
        """Make a key worthless at once."""
        self._transport.request("DELETE", f"/v1/keys/{quote(key_id, safe='')}")
