"""The teacher's client against a real HTTP server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.errors import EngineError, InvalidInputError, ModelOutputError
from dreamgym.experience.teacher import Teacher
from support.http_server import RecordingServer, serving

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


class Script:
    """The teacher's answers, each (status, text), in order."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = []

    def __call__(self, _path: str) -> tuple[int, Any]:
        status, text = self.answers.pop(0)
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return status, {"choices": [{"message": {"content": text}}], "usage": usage}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def server(script: Script) -> Iterator[RecordingServer]:
    with serving(script) as running:
        yield running


@pytest.fixture
def teacher(server: RecordingServer) -> Teacher:
    return Teacher(server.url, "gpt-teacher", "sk-1", attempts=3, pause_s=0.01)


GOOD = '{"tutorial": "Go there.", "plans": ["possible: the desk\\n is here.", "impossible: nobody flies."]}'


async def test_one_call_brings_one_plan_for_each_step(
    script: Script, server: RecordingServer, teacher: Teacher
) -> None:
    script.answers = [(200, f"```json\n{GOOD}\n```")]
    lesson = await teacher.annotate(EPISODE)
    assert lesson.plans == ("possible: the desk is here.", "impossible: nobody flies.")
    assert (lesson.tutorial, lesson.prompt_tokens, lesson.completion_tokens) == ("Go there.", 100, 10)
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer sk-1"
    assert "Action (refused): fly" in body["messages"][1]["content"]
    await teacher.close()


async def test_a_wrong_number_of_plans_and_a_busy_server_are_retried_and_all_is_counted(
    script: Script, server: RecordingServer, teacher: Teacher
) -> None:
    script.answers = [(200, '{"plans": ["one"]}'), (503, ""), (200, GOOD)]
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
    script: Script, teacher: Teacher, answers: list[tuple[int, str]], error: type[Exception]
) -> None:
    script.answers = answers
    with pytest.raises(error):
        await teacher.annotate(EPISODE)
    assert script.answers == []
    await teacher.close()


async def test_an_unreachable_teacher_is_an_engine_error() -> None:
    teacher = Teacher("http://127.0.0.1:9", "m", attempts=1)
    with pytest.raises(EngineError, match="does not answer"):
        await teacher.annotate(EPISODE)
    await teacher.close()
