"""Uploads are read line by line, whatever pieces they arrive in."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.core.errors import DeadlineError, InvalidInputError
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.tasks import TaskInput
from dreamgym.gateway.upload_lines import MAX_ISSUES, IssueReport, Line, parse_line, read_lines

SETTINGS = GatewaySettings(max_line_bytes=1000, max_upload_bytes=100_000)


async def pieces(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def read(content: bytes, size: int = 7, encoding: str = "") -> tuple[list[Line], IssueReport]:
    async def collect() -> tuple[list[Line], IssueReport]:
        report = IssueReport()
        lines = read_lines(pieces(content, size), encoding=encoding, settings=SETTINGS, report=report)
        return [line async for line in lines], report

    return asyncio.run(collect())


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=20), st.integers(1, 50))
def test_lines_and_their_numbers_do_not_depend_on_how_the_body_arrives(lines: list[bytes], size: int) -> None:
    content = b"\n".join(lines)
    wanted = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    for encoding, body in (("", content), ("gzip", gzip.compress(content))):
        found, report = read(body, size, encoding)
        assert [(line.number, line.content) for line in found] == wanted
        assert report.count == 0


def test_a_gzip_file_of_several_members_is_one_upload() -> None:
    found, report = read(gzip.compress(b"a\nb") + gzip.compress(b"c\nd\n"), encoding="gzip")
    assert [line.content for line in found] == [b"a", b"bc", b"d"]
    assert report.count == 0


def test_a_small_body_that_grows_without_end_is_stopped() -> None:
    with pytest.raises(InvalidInputError, match="larger than"):
        read(gzip.compress(b"x\n" * 1_000_000), size=1000, encoding="gzip")


def test_a_line_that_is_too_long_is_left_out_and_the_next_one_is_read() -> None:
    found, _ = read(b"a\n" + b"x" * 5000 + b"\nb\n" + b"y" * 5000)
    assert [(line.number, line.content) for line in found] == [(1, b"a"), (2, None), (3, b"b"), (4, None)]


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="brotli"):
        read(b"a", encoding="brotli")


def test_a_broken_compression_is_reported_where_it_breaks() -> None:
    _, report = read(gzip.compress(b"a\nb\n" * 50)[:-9], encoding="gzip")
    assert [issue.line for issue in report.issues] == [101]
    _, report = read(b"this is no gzip", encoding="gzip")
    assert "broken" in report.issues[0].reason


async def test_a_sender_that_stops_is_not_waited_for_forever() -> None:
    async def stalled() -> AsyncIterator[bytes]:
        yield b"a\n"
        await asyncio.Event().wait()

    settings = SETTINGS.model_copy(update={"upload_idle_s": 0.05})
    lines = read_lines(stalled(), encoding="", settings=settings, report=IssueReport())
    with pytest.raises(DeadlineError, match="nothing for"):
        _ = [line async for line in lines]


@given(st.binary(max_size=60))
def test_no_line_whatever_it_holds_breaks_the_reading(content: bytes) -> None:
    report = IssueReport()
    task = parse_line(Line(3, content), TaskInput, SETTINGS, report)
    assert (task is None) == (report.count == 1)
    assert all(issue.line == 3 and issue.reason and issue.remedy for issue in report.issues)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_no_json_value_breaks_the_reading(value: object) -> None:
    report = IssueReport()
    parse_line(Line(1, json.dumps(value).encode()), TaskInput, SETTINGS, report)
    assert report.count <= 1


def test_text_with_nul_is_refused_wherever_it_is() -> None:
    report = IssueReport()
    line = json.dumps({"instruction": "x", "metadata": {"deep": ["a\0"]}}).encode()
    assert parse_line(Line(1, line), TaskInput, SETTINGS, report) is None
    assert "NUL" in report.issues[0].reason


def test_a_report_lists_the_first_faults_and_counts_all() -> None:
    report = IssueReport()
    for number in range(MAX_ISSUES + 5):
        report.add(number, "r", "m")
    assert (len(report.issues), report.count) == (MAX_ISSUES, MAX_ISSUES + 5)
