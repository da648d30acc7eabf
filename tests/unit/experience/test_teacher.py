"""The teacher's client against a real HTTP server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.errors import EngineError, InvalidInputError, ModelOutputError
from dreamgym.experience.teacher import Teacher

EPISODE = Episode(
    "e",
    Task("t", "put a mug on desk", "You see a desk 1."),
    Source.SEED,
    (
        Transition("You see a desk 1.", "go to desk 1", "You arrive."),
        Transition("You arrive.", "fly", "No.", valid_action=False),
    ),
    TerminationReason.STEP_LIMIT,
)


class Server(ThreadingHTTPServer):
    """Answers the scripted (status, text) pairs in order and keeps the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, str]] = []
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        status, text = self.server.answers.pop(0)
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        data = orjson.dumps({"choices": [{"message": {"content": text}}], "usage": usage})
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def teacher(server: Server) -> Teacher:
    return Teacher(server.url, "gpt-teacher", "sk-1", attempts=3, pause_s=0.01)


GOOD = '{"tutorial": "Go there.", "plans": ["possible: the desk\\n is here.", "impossible: nobody flies."]}'


async def test_one_call_brings_one_plan_for_each_step(server: Server, teacher: Teacher) -> None:
    server.answers = [(200, f"```json\n{GOOD}\n```")]
    lesson = await teacher.annotate(EPISODE)
    assert lesson.plans == ("possible: the desk is here.", "impossible: nobody flies.")
    assert (lesson.tutorial, lesson.prompt_tokens, lesson.completion_tokens) == ("Go there.", 100, 10)
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer sk-1"
    assert "Action (refused): fly" in body["messages"][1]["content"]
    await teacher.close()


async def test_a_wrong_number_of_plans_and_a_busy_server_are_retried_and_all_is_counted(
    server: Server, teacher: Teacher
) -> None:
    server.answers = [(200, '{"plans": ["one"]}'), (503, ""), (200, GOOD)]
    lesson = await teacher.annotate(EPISODE)
    assert (lesson.prompt_tokens, lesson.completion_tokens) == (200, 20)
    assert [body["seed"] for _, _, body in server.requests] == [0, 1, 2]
    await teacher.close()


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([(200, "no json")] * 3, ModelOutputError),
        ([(429, "")] * 3, EngineError),
        ([(401, "bad key")], InvalidInputError),
    ],
)
async def test_a_useless_teacher_is_a_typed_error(
    server: Server, teacher: Teacher, answers: list[tuple[int, str]], error: type[Exception]
) -> None:
    server.answers = answers
    with pytest.raises(error):
        await teacher.annotate(EPISODE)
    assert server.answers == []
    await teacher.close()


async def test_an_unreachable_teacher_is_an_engine_error(server: Server) -> None:
    teacher = Teacher("http://127.0.0.1:9", "m", attempts=1)
    with pytest.raises(EngineError, match="does not answer"):
        await teacher.annotate(EPISODE)
    await teacher.close()
