"""Small parts of the gateway: ids, cursors, archives, problems."""

from __future__ import annotations

import contextlib
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dreamgym.core.errors import BY_CODE, InvalidInputError
from dreamgym.core.jobs import PipelineJob
from dreamgym.gateway.archive import Archive
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.job_feed import FeedCursor
from dreamgym.gateway.keys import Principal
from dreamgym.gateway.pages import decode_cursor, encode_cursor
from dreamgym.gateway.problems import STATUS_OF, field_problem


def test_ids_sort_by_the_time_at_which_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for second in (1, 2, 1_000, 2_000_000_000):
        monkeypatch.setattr("dreamgym.gateway.ids.time.time_ns", lambda now=second: now * 1_000_000_000)
        made.append(new_id("job"))
    assert made == sorted(made)
    assert {len(name) for name in made} == {30}


@given(st.integers(0, 10**17), st.integers(0, 10**17))
def test_a_feed_cursor_survives_its_text(event: int, metric: int) -> None:
    cursor = FeedCursor(event, metric)
    assert FeedCursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize("text", [None, "", "7", "x.y", "1.2.3", "-1.0", "9" * 30 + ".1"])
def test_an_unreadable_feed_cursor_means_from_the_start(text: str | None) -> None:
    assert FeedCursor.parse(text) == FeedCursor(0, 0)


@given(st.text(min_size=1, max_size=50).filter(str.isprintable))
def test_a_page_cursor_belongs_to_one_listing(position: str) -> None:
    cursor = encode_cursor("jobs", position)
    assert decode_cursor("jobs", cursor) == position
    with pytest.raises(InvalidInputError, match="cursor"):
        decode_cursor("tasks", cursor)


@given(st.text(max_size=40))
def test_a_made_up_page_cursor_is_refused_or_harmless(text: str) -> None:
    with contextlib.suppress(InvalidInputError):
        assert decode_cursor("jobs", text)


async def test_an_archive_is_a_tar_file_of_the_length_that_it_promised(tmp_path: Path) -> None:
    (tmp_path / "deep" / ("n" * 120)).mkdir(parents=True)
    files = {"a.json": b"{}", "empty": b"", f"deep/{'n' * 120}/weights": bytes(3_000_000), "größe": b"x" * 511}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link").symlink_to("/etc/hostname")
    archive = Archive.of(tmp_path, "policy-1")
    data = b"".join([chunk async for chunk in archive.chunks()])
    assert len(data) == archive.size_bytes
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {member.name: tar.extractfile(member) for member in tar}
        assert {name: file.read() for name, file in found.items() if file} == {
            f"policy-1/{name}": content for name, content in files.items()
        }


def test_every_error_has_a_status_of_its_own_choice() -> None:
    assert set(BY_CODE) <= set(STATUS_OF)


def test_a_fault_deep_in_a_spec_is_named_by_its_path_in_the_senders_document() -> None:
    with pytest.raises(ValidationError) as raised:
        PipelineJob.model_validate({"environment": "e", "stages": [{"kind": "evaluate", "episode": 3}]})
    problem = field_problem(raised.value.errors()[0])
    assert problem.field == "stages.0.episode"
    assert problem.reason == "unknown field 'episode'"
    assert problem.remedy == "Did you mean 'episodes'?"


@pytest.mark.parametrize(
    ("scope", "allowed"), [("read", {"read"}), ("write", {"read", "write"}), ("admin", {"read", "write", "admin"})]
)
def test_a_scope_includes_the_smaller_ones(scope: str, allowed: set[str]) -> None:
    principal = Principal("ten", "key", frozenset({scope}))
    assert {wanted for wanted in ("read", "write", "admin") if principal.may(wanted)} == allowed
