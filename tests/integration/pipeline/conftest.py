"""The platform, a household with a little data, and one finished pipeline, shared by all tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from dreamgym.client import DreamGym
from dreamgym.embedded.platform import EmbeddedPlatform
from support.embedded import running_platform
from support.pipeline import TASKS, example_lines, minimal_stages


@pytest.fixture(scope="package")
def platform() -> Iterator[EmbeddedPlatform]:
    """The whole platform as `dreamgym up` starts it."""
    with running_platform() as running:
        yield running


@pytest.fixture(scope="package")
def client(platform: EmbeddedPlatform) -> Iterator[DreamGym]:
    key = (platform.state_dir / "admin.key").read_text().strip()
    with DreamGym(platform.addresses["gateway"], key) as opened:
        yield opened


@pytest.fixture(scope="package")
def environment(client: DreamGym, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The household with a few recorded tasks and held-out games, and one broken line among the seeds."""
    name = "household"
    client.environments.create(name, adapter="alfworld", max_steps=15, description="A household in text.")
    wanted = {task["task_id"] for task in example_lines("tasks-train")[:TASKS]}
    client.environments.add_tasks(name, [t for t in example_lines("tasks-train") if t["task_id"] in wanted])
    client.environments.add_tasks(name, example_lines("tasks-test")[:8])
    seeds = [json.dumps(episode).encode() for episode in example_lines("seeds") if episode["task_id"] in wanted]
    seeds.insert(3, b'{"task_id": "torn')
    upload = tmp_path_factory.mktemp("seeds") / "seeds.jsonl"
    upload.write_bytes(b"\n".join(seeds))
    report = client.environments.add_trajectories(name, upload)
    assert [issue.line for issue in report.issues] == [4], "the broken line is named, the rest is kept"
    assert report.episodes_stored + report.already_there == len(seeds) - 1
    return name


@pytest.fixture(scope="package")
def ask(platform: EmbeddedPlatform) -> Iterator[Callable[..., list[Any]]]:
    """Ask Postgres itself what was stored."""
    url = platform.wiring.database_url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        yield lambda query, *values: connection.execute(query, values).fetchall()


@pytest.fixture(scope="package")
def finished(client: DreamGym, environment: str) -> dict[str, Any]:
    job = client.jobs.launch({"kind": "pipeline", "environment": environment, "seed": 3, "stages": minimal_stages()})
    ended = client.jobs.wait(job.id).to_json()
    assert ended["state"] == "succeeded", ended.get("error")
    return ended
