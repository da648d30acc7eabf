"""A job's events arrive once each and in order, whatever the connection does."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated

import pytest
from fastapi import FastAPI, Header
from fastapi.responses import JSONResponse, Response, StreamingResponse
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.client import DreamGym, Event
from dreamgym.client.events import Retry, parse_events
from dreamgym.core.errors import NotFoundError

ClientOf = Callable[[FastAPI], DreamGym]


def feed(*numbers: int) -> bytes:
    """Numbered events as the gateway writes them, among keep-alives."""
    parts = [
        f'event: job_event\nid: {n}.0\ndata: {{"type": "stage.note", "data": {{"number": {n}}}}}\n\n: ping\n\n'
        for n in numbers
    ]
    return "".join(parts).encode()


END = b'event: end\nid: 9.9\ndata: {"state": "succeeded"}\n\n'


def application(connections: list[tuple[bytes, int]], asked: list[str]) -> FastAPI:
    """Answers each connection with the next (content, status); content without an end breaks off."""
    app = FastAPI()

    @app.get("/v1/jobs/job_1/events")
    async def events(last_event_id: Annotated[str, Header()] = "") -> Response:
        asked.append(last_event_id)
        content, status = connections.pop(0)
        if status != 200:
            return JSONResponse({"code": "unavailable" if status == 503 else "not_found", "detail": "no"}, status)

        async def body() -> AsyncIterator[bytes]:
            for start in range(0, len(content), 7):  # arbitrary pieces
                yield content[start : start + 7]

        return StreamingResponse(body(), media_type="text/event-stream")

    @app.get("/v1/jobs/job_1")
    async def job() -> dict[str, str]:
        return {"id": "job_1", "state": "running" if connections else "succeeded"}

    return app


def test_events_go_on_where_a_broken_connection_left_off(client_of: ClientOf) -> None:
    asked: list[str] = []
    torn = feed(3)[:-20]  # an event that was cut off is not delivered, and comes again
    connections = [(feed(1, 2) + torn, 200), (b"", 503), (feed(3, 4), 200), (END, 200)]
    events = list(client_of(application(connections, asked)).jobs.events("job_1"))
    assert [event.data.get("number") for event in events] == [1, 2, 3, 4, None]
    assert [event.type for event in events] == ["stage.note"] * 4 + ["end"]
    assert asked == ["", "2.0", "2.0", "4.0"]


def test_following_can_begin_after_an_event_that_was_seen_before(client_of: ClientOf) -> None:
    asked: list[str] = []
    client = client_of(application([(feed(6) + END, 200)], asked))
    assert [event.id for event in client.jobs.events("job_1", last_event_id="5.0")] == ["6.0", "9.9"]
    assert asked == ["5.0"]


def test_a_stream_that_closes_after_the_job_has_ended_is_not_asked_again(client_of: ClientOf) -> None:
    asked: list[str] = []
    client = client_of(application([(feed(1), 200)], asked))
    assert len(list(client.jobs.events("job_1"))) == 1
    assert asked == [""]


def test_the_events_of_an_unknown_job_are_an_error_not_a_wait(client_of: ClientOf) -> None:
    with pytest.raises(NotFoundError):
        list(client_of(application([(b"", 404)], [])).jobs.events("job_1"))


def test_an_event_may_have_several_lines_of_data_and_none_of_json() -> None:
    lines = ["retry: 1500", "data: one", "data:two", "", "data", "", "event: x", 'data: {"a": 1}', ""]
    assert list(parse_events(lines)) == [
        Retry(1.5),
        Event("message", {"text": "one\ntwo"}),
        Event("message", {"text": ""}),
        Event("x", {"a": 1}),
    ]


@given(st.lists(st.text(alphabet="abc:{}\"' ", max_size=12)))
def test_no_stream_breaks_the_parser(lines: list[str]) -> None:
    for event in parse_events(lines):
        assert isinstance(event, Event | Retry)


def test_closing_the_client_ends_following(client_of: ClientOf) -> None:
    client = client_of(application([(feed(1), 200), *[(b"", 200)] * 1000], []))
    events = client.jobs.events("job_1")
    assert next(events).type == "stage.note"
    client.close()
    assert list(events) == []
