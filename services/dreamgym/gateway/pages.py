"""Opaque cursors of listings."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from fastapi import Query

from dreamgym.core.errors import InvalidInputError

Limit = Annotated[int, Query(ge=1, le=1000, description="Largest number of items in one answer.")]
Cursor = Annotated[str | None, Query(max_length=400, description="`next_cursor` of the answer before.")]


def encode_cursor(kind: str, position: str | int) -> str:
    """A text that means nothing to the reader and names the listing that it belongs to."""
    return base64.urlsafe_b64encode(f"{kind}:{position}".encode()).decode().rstrip("=")


def decode_cursor(kind: str, cursor: str | None) -> str | None:
    """The position behind a cursor. Raises InvalidInputError if it is not one of this listing."""
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    prefix, _, position = text.partition(":")
    if prefix != kind or not position:
        raise InvalidInputError("cursor: not one of this listing.", remedy="Use `next_cursor` of the answer before.")
    return position
