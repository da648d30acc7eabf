"""Listings, page after page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dreamgym.client.errors import ProtocolError
from dreamgym.client.transport import Transport


def pages(
    transport: Transport, path: str, params: Mapping[str, Any] | None = None, *, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every item of a listing, following its opaque cursor; at most `limit`."""
    cursor, given = None, 0
    while True:
        answer = transport.json("GET", path, params={**(params or {}), "cursor": cursor})
        if not isinstance(answer, Mapping) or not isinstance(answer.get("items"), list):
            raise ProtocolError(f"The listing {path} has no items.", remedy="Use the client of the gateway's version.")
        for item in answer["items"]:
            if limit is not None and given >= limit:
                return
            given += 1
            yield item
        cursor = answer.get("next_cursor")
        if not cursor:
            return
