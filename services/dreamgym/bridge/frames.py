"""What passes between the bridge and an adapter process: JSON objects, each after its length in four bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, BinaryIO

import orjson

from dreamgym.bridge.adapters.protocol import AdapterInfo, AdapterState

HEADER_BYTES = 4
MAX_FRAME_BYTES = 32 * 1024 * 1024

Message = dict[str, Any]


class FrameError(Exception):
    """The other side sent something that is not a frame."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One frame. Raises FrameError for a message over the size limit."""
    body = orjson.dumps(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"A message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}.")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def body_length(header: bytes) -> int:
    """The length that a frame's header announces, in bytes."""
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"A frame announces {length} bytes, over the limit of {MAX_FRAME_BYTES}.")
    return length


def decode(body: bytes) -> Message:
    """The message in a frame's body."""
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"A frame holds no JSON: {error}.") from error
    if not isinstance(message, dict):
        raise FrameError(f"A frame holds a {type(message).__name__}, not an object.")
    return message


def read_frame(stream: BinaryIO) -> Message | None:
    """The next message of a blocking stream; None at its end, also within a frame."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    length = body_length(header)
    body = stream.read(length)
    return decode(body) if len(body) == length else None


def state_to_json(state: AdapterState) -> Message:
    return asdict(state)


def state_from_json(value: Mapping[str, Any]) -> AdapterState:
    try:
        return AdapterState(**{**value, "admissible_actions": tuple(value["admissible_actions"])})
    except (TypeError, KeyError) as error:
        raise FrameError(f"Not an adapter's state: {error}.") from error


def info_to_json(info: AdapterInfo) -> Message:
    return asdict(info)


def info_from_json(value: Mapping[str, Any]) -> AdapterInfo:
    try:
        return AdapterInfo(**value)
    except TypeError as error:
        raise FrameError(f"Not an adapter's description: {error}.") from error
