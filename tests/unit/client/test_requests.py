"""Requests survive what can be survived, and fail with words that help."""

import gzip
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from dreamgym.client import DreamGym, ProtocolError, Retries, UnreachableError
from dreamgym.core.errors import (
    CapacityError,
    ConflictError,
    DreamGymError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
)

ClientOf = Callable[[FastAPI], DreamGym]
JOB = {"id": "job_1", "state": "queued", "kind": "pipeline", "environment": {"id": "env_1", "name": "household"}}


def test_a_launch_that_meets_a_busy_gateway_is_retried_under_one_key(client_of: ClientOf) -> None:
    app, keys = FastAPI(), list[str]()

    @app.post("/v1/jobs")
    async def launch(request: Request) -> Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) < 3:
            return JSONResponse({"code": "unavailable", "detail": "busy"}, 503, headers={"Retry-After": "0"})
        return JSONResponse(JOB, 202)

    assert client_of(app).jobs.launch({"kind": "pipeline"}).id == "job_1"
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_a_launch_whose_connection_breaks_is_retried_under_one_key() -> None:
    """The first connection is closed after the request was read, as by a gateway that dies before it answers."""
    seen: list[str] = []
    body = json.dumps(JOB).encode()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in (
            b"",
            b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body),
        ):
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(65536).decode())
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with DreamGym(url, "secret", retries=Retries(first_delay_s=0.001)) as client:
        job = client.jobs.launch({"kind": "pipeline"}, idempotency_key="mine")
    thread.join(5)
    listener.close()
    assert job.id == "job_1"
    assert all("idempotency-key: mine" in request.lower() for request in seen)
    assert len(seen) == 2


def test_a_step_of_an_episode_is_never_sent_twice(client_of: ClientOf) -> None:
    app, actions = FastAPI(), list[str]()

    @app.post("/v1/environments/household/play")
    async def start() -> dict[str, str]:
        return {"session": "play_1", "state": "You are in a room.", "instruction": "tidy up"}

    @app.post("/v1/play/play_1/act")
    async def act(request: Request) -> Response:
        actions.append((await request.json())["action"])
        return JSONResponse({"code": "unavailable", "detail": "The experience service is away."}, 503)

    session = client_of(app).play("household", task_id="t1")
    with pytest.raises(DreamGymError, match="away"):
        session.act("look")
    assert actions == ["look"]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "not_found", NotFoundError),
        (409, "conflict", ConflictError),
        (422, "invalid_input", InvalidInputError),
        (401, "unauthenticated", UnauthenticatedError),
        (429, "a_code_of_tomorrow", CapacityError),
        (418, "a_code_of_tomorrow", DreamGymError),
    ],
)
def test_a_problem_becomes_the_exception_of_its_code(
    client_of: ClientOf, status: int, code: str, kind: type[DreamGymError]
) -> None:
    app = FastAPI()

    @app.get("/v1/jobs/job_1")
    async def get() -> Response:
        problem = {
            "type": f"urn:dreamgym:problem:{code}",
            "code": code,
            "detail": "What happened.",
            "remedy": "Do this.",
        }
        return JSONResponse(problem, status, headers={"Retry-After": "0"}, media_type="application/problem+json")

    with pytest.raises(kind) as caught:
        client_of(app).jobs.get("job_1")
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.remedy) == ("What happened.", "Do this.")


def test_an_address_without_a_gateway_says_how_to_start_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    client = DreamGym(url, "secret", retries=Retries(attempts=2, first_delay_s=0.001))
    with pytest.raises(UnreachableError, match="dreamgym up"):
        client.jobs.get("job_1")


def test_another_server_at_the_address_is_recognised(client_of: ClientOf) -> None:
    app = FastAPI()

    @app.get("/v1/jobs/job_1")
    async def page() -> Response:
        return Response("<html>It works!</html>", media_type="text/html")

    with pytest.raises(ProtocolError, match="DreamGym gateway"):
        client_of(app).jobs.get("job_1")


@pytest.mark.parametrize("compressed", [True, False])
def test_an_upload_is_sent_whole_again_after_a_refusal(client_of: ClientOf, tmp_path: Path, compressed: bool) -> None:
    app, bodies = FastAPI(), list[tuple[str, bytes]]()

    @app.post("/v1/environments/household/tasks")
    async def upload(request: Request) -> Response:
        bodies.append((request.headers.get("content-encoding", ""), await request.body()))
        if len(bodies) == 1:
            return JSONResponse({"code": "unavailable", "detail": "busy"}, 503, headers={"Retry-After": "0"})
        issue = {"line": 2, "reason": "Not JSON.", "remedy": "Correct it."}
        return JSONResponse({"accepted": 1, "already_there": 0, "issue_count": 1, "issues": [issue]})

    lines = b'{"id": "a", "instruction": "tidy"}\nnot json\n' * 50_000
    file = tmp_path / ("tasks.jsonl.gz" if compressed else "tasks.jsonl")
    file.write_bytes(gzip.compress(lines) if compressed else lines)
    report = client_of(app).environments.add_tasks("household", file)
    assert bodies == [("gzip" if compressed else "", file.read_bytes())] * 2
    assert report.accepted == 1
    assert report.issues[0].line == 2


def test_records_are_uploaded_as_compressed_lines(client_of: ClientOf) -> None:
    app, received = FastAPI(), list[bytes]()

    @app.post("/v1/environments/my%20house/trajectories")
    @app.post("/v1/environments/my house/trajectories")
    async def upload(request: Request) -> dict[str, int]:
        received.append(gzip.decompress(await request.body()))
        return {"episodes_stored": 2}

    report = client_of(app).environments.add_trajectories("my house", [{"a": 1}, {"a": 2}])
    assert report.episodes_stored == 2
    assert received == [b'{"a": 1}\n{"a": 2}\n']


def test_a_listing_follows_its_cursor_to_the_end_or_the_limit(client_of: ClientOf) -> None:
    app = FastAPI()

    @app.get("/v1/environments/household/tasks")
    async def tasks(cursor: str = "") -> dict[str, object]:
        page = int(cursor or 0)
        return {"items": [{"id": f"{page}-{i}"} for i in range(3)], "next_cursor": str(page + 1) if page < 2 else None}

    client = client_of(app)
    assert len(list(client.environments.tasks("household"))) == 9
    assert [task["id"] for task in client.environments.tasks("household", limit=4)] == ["0-0", "0-1", "0-2", "1-0"]


def test_a_download_that_breaks_off_leaves_no_file(client_of: ClientOf, tmp_path: Path) -> None:
    app = FastAPI()

    @app.get("/v1/models/{model}/download")
    async def download(model: str) -> Response:
        async def chunks() -> object:
            yield b"x" * 10
            if model == "broken":
                raise ConnectionError("the disk went away")

        return StreamingResponse(chunks(), headers={"Content-Length": "20" if model == "broken" else "10"})

    client = client_of(app)
    with pytest.raises(UnreachableError):
        client.models.download("broken", tmp_path / "broken.tar")
    assert list(tmp_path.iterdir()) == []
    assert client.models.download("whole", tmp_path / "whole.tar").read_bytes() == b"x" * 10
