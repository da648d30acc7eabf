"""What the commands print, and how they exit, against a small gateway of their own."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from typer.testing import CliRunner, Result

from dreamgym.cli.main import app

ENVIRONMENT = {"id": "env_1", "name": "household", "adapter": "alfworld", "max_steps": 15}


class Gateway:
    """The few routes that the tests need, with what was asked of them."""

    url = ""

    def __init__(self, job: dict[str, Any]) -> None:
        self.app, self.job, self.seen = FastAPI(), job, list[tuple[str, Any]]()
        self.app.get("/v1/environments")(lambda: {"items": [ENVIRONMENT], "next_cursor": None})
        self.app.get("/v1/environments/household/tasks")(lambda: {"items": [{"id": "test-1"}], "next_cursor": None})
        self.app.get("/v1/jobs/job_01")(lambda: self.job)
        self.app.get("/v1/jobs/job_01/events")(self.events)
        self.app.post("/v1/jobs")(self.launch)
        self.app.post("/v1/environments/household/trajectories")(self.upload)
        self.app.post("/v1/environments/household/play")(self.play)
        self.app.post("/v1/play/play_1/act")(self.act)
        self.app.delete("/v1/play/play_1")(self.leave)

    async def launch(self, request: Request) -> Response:
        self.seen.append(("launch", await request.json()))
        return JSONResponse({**self.job, "state": "queued"}, 202)

    async def events(self) -> Response:
        notes = [("stage.started", {"stage": 0}), ("job.state", {"from": "running", "to": self.job["state"]})]
        lines = [
            f"event: job_event\nid: {n}.0\ndata: {json.dumps({'type': t, 'data': d})}\n\n"
            for n, (t, d) in enumerate(notes)
        ]
        return StreamingResponse(iter([*lines, 'event: end\nid: 9.9\ndata: {"state": "x"}\n\n']))

    async def upload(self, request: Request) -> dict[str, Any]:
        await request.body()
        issue = {"line": 2, "reason": "Not JSON.", "remedy": "One JSON object a line."}
        return {"episodes_stored": 1, "transitions_stored": 4, "issue_count": 1, "issues": [issue]}

    async def play(self, request: Request) -> dict[str, Any]:
        self.seen.append(("play", await request.json()))
        start = {"session": "play_1", "instruction": "put a mug in the cabinet", "state": "You see a desk 1."}
        return {**start, "world_sheet": "desk 1: mug 1; drawer 1: nothing"}

    async def act(self, request: Request) -> dict[str, Any]:
        action = (await request.json())["action"]
        self.seen.append(("act", action))
        won = action == "move mug 1 to cabinet 1"
        words = {"state": f"You {action}.", "reasoning": "the mug [is] here", "confidence": 0.87}
        return {**words, "reward": float(won), "done": won, "success": won, "termination": "success" if won else None}

    async def leave(self) -> Response:
        self.seen.append(("leave", None))
        return Response(status_code=204)


@pytest.fixture
def gateway(make: SimpleNamespace) -> Iterator[Gateway]:
    found = Gateway(make.job())
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(found.app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()  # the socket listens already: a request that comes early waits
    found.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    yield found
    server.should_exit = True
    thread.join(10)
    listener.close()


def run(gateway: Gateway, *arguments: str, typed: str | None = None) -> Result:
    url = gateway.url
    return CliRunner().invoke(app, ["--url", url, "--key", "secret", *arguments], input=typed)


def test_a_listing_is_a_table_for_people_and_json_for_programs(gateway: Gateway) -> None:
    assert "household" in run(gateway, "env", "list").stdout
    assert json.loads(run(gateway, "env", "list", "--json").stdout)[0]["adapter"] == "alfworld"


def test_playing_shows_task_states_reward_reasoning_and_confidence(gateway: Gateway) -> None:
    typed = "take mug 1\n:sheet\nmove mug 1 to cabinet 1\nafter the end\n"
    result = run(gateway, "play", "household", typed=typed)
    assert result.exit_code == 0
    for expected in (
        "Task: put a mug in the cabinet",
        "> take mug 1",
        "(the mug [is] here)",
        "reward 0, confidence 87%",
        "drawer 1: nothing",
        "reward 1, confidence 87%, the episode is over: success",
    ):
        assert expected in result.stdout
    assert gateway.seen[0][1]["task_id"] == "test-1"
    assert gateway.seen[0][1]["where"] == "dream"
    assert gateway.seen[1:] == [("act", "take mug 1"), ("act", "move mug 1 to cabinet 1"), ("leave", None)]


def test_quitting_leaves_the_episode(gateway: Gateway) -> None:
    result = run(gateway, "play", "household", "--real", typed=":quit\nlook\n")
    assert "You left the episode before its end." in result.stdout
    assert [name for name, _ in gateway.seen] == ["play", "leave"]
    assert gateway.seen[0][1]["transition_budget"] == 100


def test_an_episode_is_one_json_document_for_programs(gateway: Gateway) -> None:
    document = json.loads(run(gateway, "play", "household", "--json", typed="look\n").stdout)
    assert document["start"]["instruction"] == "put a mug in the cabinet"
    assert [step["action"] for step in document["steps"]] == ["look"]


def test_watching_without_a_terminal_prints_lines_and_the_report(gateway: Gateway) -> None:
    result = run(gateway, "job", "watch", "job_01")
    assert result.exit_code == 0
    assert "1/8 train the experience model started" in result.stdout
    assert "job succeeded" in result.stdout
    assert "did not measurably help" in result.stdout


@pytest.mark.parametrize(("state", "code"), [("failed", 6), ("cancelled", 7)])
def test_the_exit_code_says_how_a_watched_job_ended(gateway: Gateway, state: str, code: int) -> None:
    gateway.job |= {"state": state, "error": {"code": "engine_failed", "message": "Gone.", "remedy": "Start it."}}
    result = run(gateway, "job", "watch", "job_01")
    assert result.exit_code == code
    assert ("what to do: Start it." in result.stderr) == (state == "failed")


def test_a_job_is_launched_with_the_fields_that_were_set(gateway: Gateway) -> None:
    fields = ("--kind", "train_policy", "--set", "iterations=4", "--set", "algorithm=sft")
    assert "job_01 is queued" in run(gateway, "job", "launch", "household", *fields).stdout
    body = {"kind": "train_policy", "environment": "household", "iterations": 4, "algorithm": "sft"}
    assert gateway.seen == [("launch", body)]


def test_lines_that_were_not_imported_are_named_and_fail_the_command(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "seeds.jsonl"
    file.write_text("{}\nnot json\n")
    result = run(gateway, "import", "household", str(file))
    assert result.exit_code == 1
    assert "episodes stored 1, transitions stored 4" in result.stdout
    assert "line 2: Not JSON. One JSON object a line." in result.stdout


def test_without_a_gateway_a_command_says_how_to_get_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--state", str(tmp_path), "job", "list"])
    assert result.exit_code == 5
    assert "dreamgym up" in result.stderr


def test_a_gateway_that_does_not_answer_has_an_exit_code_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert CliRunner().invoke(app, ["--url", url, "--key", "k", "env", "list"]).exit_code == 3


def test_the_platform_of_this_machine_is_found_by_its_state_folder(gateway: Gateway, tmp_path: Path) -> None:
    url = gateway.url
    (tmp_path / "platform.json").write_text(json.dumps({"gateway_url": url}))
    (tmp_path / "admin.key").write_text("dgk_secret\n")
    result = CliRunner().invoke(app, ["--state", str(tmp_path), "env", "list"])
    assert "household" in result.stdout


def test_settings_are_printed_without_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DREAMGYM_DATABASE_URL", "postgresql://me:hunter2@db/dreamgym")
    monkeypatch.setenv("DREAMGYM_SERVICE_TOKEN", "hunter2")
    result = CliRunner().invoke(app, ["--state", str(tmp_path), "--key", "hunter2", "config", "--json"])
    assert "hunter2" not in result.stdout
    assert json.loads(result.stdout)["database_url"] == "postgresql://me:***@db/dreamgym"


def test_the_demo_without_its_recorded_examples_says_how_to_make_them(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--examples", str(tmp_path), "--state", str(tmp_path / "state")])
    assert result.exit_code == 1
    assert "make seeds" in result.stderr
    assert not (tmp_path / "state").exists()


def test_a_state_folder_in_use_is_refused_with_a_remedy(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "state").mkdir()
    with (tmp_path / "state" / "lock").open("w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = CliRunner().invoke(app, ["--state", str(tmp_path / "state"), "up"])
    assert result.exit_code == 1
    assert "in use" in result.stderr
    assert "another --state" in result.stderr
