"""Reads an upload line by line while it arrives: decompressed, within limits, every fault reported with its line."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from dreamgym.core.errors import DeadlineError, DreamGymError, InvalidInputError
from dreamgym.gateway.settings import GatewaySettings

MAX_ISSUES = 1000
T = TypeVar("T", bound=BaseModel)
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Issue:
    """One line that was not taken."""

    line: int
    reason: str
    remedy: str


@dataclass
class IssueReport:
    """The first `MAX_ISSUES` faults of an upload and the count of all."""

    issues: list[Issue] = field(default_factory=list)
    count: int = 0

    def add(self, line: int, reason: str, remedy: str) -> None:
        self.count += 1
        if len(self.issues) < MAX_ISSUES:
            self.issues.append(Issue(line, reason, remedy))


@dataclass(frozen=True)
class Line:
    """A line's number, from 1, and its bytes; None if it was longer than allowed."""

    number: int
    content: bytes | None


async def read_lines(
    body: AsyncIterator[bytes], *, encoding: str, settings: GatewaySettings, report: IssueReport
) -> AsyncIterator[Line]:
    """The lines of a body that are not empty. A compressed body that breaks off is reported at the line where it does.

    Raises InvalidInputError for an unknown encoding or more than `max_upload_bytes`, DeadlineError if the sender stops.
    """
    if encoding not in ("", "identity", "gzip"):
        raise InvalidInputError(
            f"The Content-Encoding {encoding!r} is not known.", remedy="Send gzip, or no compression."
        )
    pieces = _with_deadline(body, settings.upload_idle_s)
    broken: list[str] = []
    if encoding == "gzip":
        pieces = _gunzip(pieces, broken)
    number, total, too_long, rest = 1, 0, False, bytearray()
    async for piece in pieces:
        total += len(piece)
        if total > settings.max_upload_bytes:
            raise InvalidInputError(
                f"The upload is larger than {settings.max_upload_bytes} bytes.", remedy="Split it into several uploads."
            )
        *ended, last = piece.split(b"\n")
        for part in ended:
            rest += part
            if too_long or len(rest) > settings.max_line_bytes:
                yield Line(number, None)
            elif rest.strip():
                yield Line(number, bytes(rest))
            number, too_long = number + 1, False
            rest.clear()
        rest += last
        if len(rest) > settings.max_line_bytes:
            too_long = True
            rest.clear()
    if broken:
        report.add(number, broken[0], "Compress the file again; the lines before this one were read.")
    elif too_long:
        yield Line(number, None)
    elif rest.strip():
        yield Line(number, bytes(rest))


def parse_line(line: Line, model: type[T], settings: GatewaySettings, report: IssueReport) -> T | None:
    """The line as a `model`, or None after its fault was reported."""
    if line.content is None:
        report.add(line.number, f"Longer than {settings.max_line_bytes} bytes.", "Split the record.")
        return None
    try:
        value = orjson.loads(line.content)
    except orjson.JSONDecodeError as error:
        report.add(line.number, f"Not JSON: {error}.", "One JSON object a line, in UTF-8.")
        return None
    return parse_record(line.number, value, model, report)


def parse_record(number: int, value: Any, model: type[T], report: IssueReport) -> T | None:
    """A parsed record as a `model`, or None after its fault was reported."""
    if not isinstance(value, dict):
        report.add(number, f"A {type(value).__name__}, not an object.", "One JSON object a line.")
        return None
    if _holds_nul(value):
        report.add(number, "Holds the character NUL.", "Remove it: no database text can hold it.")
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = error.errors()
        reason = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'record'}: {fault['msg']}" for fault in faults[:5])
        unknown = [str(fault["loc"][-1]) for fault in faults if fault["type"] == "extra_forbidden"]
        remedy = f"Move {', '.join(unknown)} into metadata, or correct the name." if unknown else "Correct the line."
        report.add(number, reason, remedy)
    except DreamGymError as error:
        report.add(number, error.message, error.remedy or "Correct the line.")
    return None


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(_holds_nul(item) for item in value)


async def _with_deadline(body: AsyncIterator[bytes], idle_s: float) -> AsyncIterator[bytes]:
    iterator = aiter(body)
    while True:
        try:
            async with asyncio.timeout(idle_s):
                piece = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise DeadlineError(
                f"The upload sent nothing for {idle_s:g} s.", remedy="Repeat it: what is stored is not stored twice."
            ) from None
        yield piece


async def _gunzip(pieces: AsyncIterator[bytes], broken: list[str]) -> AsyncIterator[bytes]:
    """Decompress in small pieces, so that a small body cannot become a huge one in memory."""
    inflate = zlib.decompressobj(wbits=31)
    async for piece in pieces:
        try:
            out = b""
            while piece or len(out) == _PIECE_BYTES:  # a full piece: there may be more output without more input
                if inflate.eof:
                    if not piece:
                        break
                    inflate = zlib.decompressobj(wbits=31)  # several members one after another are one file
                if out := inflate.decompress(piece, _PIECE_BYTES):
                    yield out
                piece = inflate.unconsumed_tail or inflate.unused_data
        except zlib.error as error:
            broken.append(f"The gzip data is broken: {error}.")
            return
    if not inflate.eof:
        broken.append("The gzip data ends early.")
