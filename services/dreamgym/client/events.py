"""Server-sent events: a parser, and an iterator that survives broken connections.

Source: the HTML standard, section 9.2 (event streams).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dreamgym.client.errors import UnreachableError
from dreamgym.client.transport import Transport
from dreamgym.core.errors import UnavailableError


@dataclass(frozen=True)
class Event:
    """One event of a job: `type` is a stable name such as `stage.started`, `data` its JSON object."""

    type: str
    data: dict[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True)
class Retry:
    """The server's wish for the pause before a reconnection, in seconds."""

    delay_s: float


def parse_events(lines: Iterable[str]) -> Iterator[Event | Retry]:
    """Read an event stream from its lines (without their ends). Comments, which keep a connection alive, are skipped.

    An event that is cut off by the end of the stream is not delivered; it comes again after reconnecting. Data that is
    no JSON object is given as `{"text": ...}`.
    """
    kind, identifier, data = "", "", list[str]()
    for line in lines:
        if not line:
            if data:
                yield Event(kind or "message", _decode("\n".join(data)), identifier)
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            identifier = value
        elif name == "retry" and value.isdigit():
            yield Retry(int(value) / 1000)


def follow(
    transport: Transport,
    path: str,
    *,
    last_event_id: str = "",
    is_over: Callable[[], bool],
    silence_s: float = 45.0,
    patience_s: float = 60.0,
) -> Iterator[Event]:
    """Yield events until the server ends the stream and `is_over` agrees that nothing more will come.

    A connection that breaks or is silent for `silence_s` is made again from the last event seen (`Last-Event-ID`), so no
    event is lost and none comes twice. Ends when the client is closed. Raises UnreachableError after `patience_s`
    without any connection.
    """
    delay_s, broken_since, attempt = 0.0, None, 0
    while not transport.is_closed:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_event_id} if last_event_id else {})}
        try:
            with transport.stream(path, headers=headers, timeout_s=silence_s) as response:
                broken_since = None
                for event in parse_events(response.iter_lines()):
                    if isinstance(event, Retry):
                        delay_s = event.delay_s
                        continue
                    attempt = 0
                    last_event_id = event.id or last_event_id
                    yield event
            if transport.is_closed or is_over():
                return
        except (UnreachableError, UnavailableError):
            if transport.is_closed:
                return
            now = time.monotonic()
            broken_since = broken_since or now
            if now - broken_since > patience_s:
                raise
        time.sleep(max(delay_s, transport.retries.delay_s(attempt)))
        attempt = min(attempt + 1, 10)


def _decode(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"text": text}
    return value if isinstance(value, dict) else {"text": text}
