"""What a customer does with an environment and its trained models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dreamgym.cli.main import app
from dreamgym.client import DreamGym
from dreamgym.core.errors import DreamGymError
from dreamgym.embedded.platform import EmbeddedPlatform
from dreamgym.trainer.model_files import BASE_FOLDER
from support.pipeline import example_lines, results_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not (BASE_FOLDER / "config.json").exists(), reason="the base checkpoint is not in the tree"),
]


def test_a_person_can_play_in_the_dream_of_the_trained_model(
    client: DreamGym, environment: str, finished: dict[str, Any]
) -> None:
    task = example_lines("tasks-train")[0]
    with client.play(environment, task_id=task["task_id"], seed=1) as session:
        assert session.start.state.startswith("You are in the middle of a room.")
        assert session.act("inventory").state


def test_a_step_shows_the_stored_ones_that_grounded_it(
    platform: EmbeddedPlatform, client: DreamGym, environment: str, finished: dict[str, Any]
) -> None:
    key = (platform.state_dir / "admin.key").read_text().strip()
    command = [
        "--url",
        platform.addresses["gateway"],
        "--key",
        key,
        "play",
        environment,
        "--split",
        "train",
        "--seed",
        "1",
    ]
    shown = CliRunner().invoke(app, command, input="inventory\n:similar\n:quit\n")
    assert shown.exit_code == 0, shown.output
    assert "stored steps" in shown.output
    assert "[seed] > inventory" in shown.output
    with client.play(environment, task_id=example_lines("tasks-train")[0]["task_id"]) as session:
        seen = session.act("inventory")
        steps = client.environments.transitions(environment, seen.retrieved)
    assert [step["id"] for step in steps] == seen.retrieved != []
    assert {step["action"] for step in steps} == {"inventory"}
    assert client.environments.transitions(environment, [2**62]) == []


def test_the_dream_is_a_gymnasium_environment(client: DreamGym, environment: str, finished: dict[str, Any]) -> None:
    environments = pytest.importorskip("dreamgym.client.gym", reason="make setup-dev installs gymnasium")
    checker = pytest.importorskip("gymnasium.utils.env_checker")
    dream = environments.DreamEnv(client, environment, max_steps=3, render_mode="ansi")
    checker.check_env(dream, skip_render_check=True)
    first, info = dream.reset(seed=4)
    assert dream.reset(seed=4) == (first, info)
    assert dream.reset(seed=4, options={"task_id": info["task_id"]})[1]["instruction"] == info["instruction"]
    steps = [dream.step("inventory") for _ in range(3)]
    assert [(terminated, truncated) for _, _, terminated, truncated, _ in steps] == [(False, False)] * 2 + [
        (False, True)
    ]
    assert steps[-1][4]["termination"] == "step_limit"
    assert "> inventory" in dream.render()
    with pytest.raises(DreamGymError, match="Call reset first"):
        dream.step("inventory")
    real = environments.DreamEnv(client, environment, real=True, split="test", max_steps=2)
    state, info = real.reset(seed=1)
    assert state.startswith("You are in the middle of a room.")
    assert info["admissible_actions"]
    assert real.action_space.sample() in info["admissible_actions"]
    real.close()
    with pytest.raises(DreamGymError, match="colour"):
        dream.reset(options={"colour": "red"})


def test_a_job_embeds_what_is_stored_anew(client: DreamGym, environment: str, finished: dict[str, Any]) -> None:
    stored = client.environments.statistics(environment)
    job = client.jobs.launch({"kind": "reembed", "environment": environment})
    ended = client.jobs.wait(job.id).to_json()
    assert ended["state"] == "succeeded", ended.get("error")
    result = results_of(ended)[0]
    assert (result["encoder"], result["transitions"]) == (stored["encoder"], stored["transitions"])


def test_the_command_line_changes_an_environment_and_removes_what_is_stored(
    platform: EmbeddedPlatform, environment: str, tmp_path: Path
) -> None:
    key = (platform.state_dir / "admin.key").read_text().strip()

    def run(*arguments: str) -> Any:
        address = ["--url", f"http://{platform.addresses['gateway'].removeprefix('http://')}", "--key", key]
        result = CliRunner().invoke(app, [*address, "env", *arguments, "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    name = "cellar"
    run("create", name)
    settings = {"admission": {"policy": "enrich", "dream_share_cap": 0.25}}
    changed = run("set", name, "--settings", json.dumps(settings), "--max-steps", "7")
    assert (changed["settings"], changed["max_steps"]) == (settings, 7)
    upload = tmp_path / "episodes.jsonl"
    upload.write_text("\n".join(json.dumps(episode) for episode in example_lines("seeds")[:3]))
    assert (
        CliRunner()
        .invoke(app, ["--url", platform.addresses["gateway"], "--key", key, "import", name, str(upload)])
        .exit_code
        == 0
    )
    stored = run("episodes", name, "--source", "seed")
    assert len(stored) == 3
    assert run("forget", name, stored[0]["episode_id"])["episodes"] == 1
    assert run("forget", name, "--all")["episodes"] == 2
    assert run("episodes", name) == []
