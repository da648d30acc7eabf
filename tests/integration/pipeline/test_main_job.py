"""The main job through the real services: one pipeline of minimal size, and what it left behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from dreamgym.client import DreamGym
from dreamgym.embedded.platform import EmbeddedPlatform
from dreamgym.embedded.services import REPLICAS
from dreamgym.trainer.model_files import BASE_FOLDER
from support.pipeline import results_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not (BASE_FOLDER / "config.json").exists(), reason="the base checkpoint is not in the tree"),
]


def test_every_stage_of_a_pipeline_succeeds_and_names_its_model(finished: dict[str, Any]) -> None:
    results = results_of(finished)
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
    sim_to_real = results_of(finished)[5]
    ((recorded,),) = ask(
        "SELECT count(*) FROM replay.transitions WHERE source = 'real' AND job_id = %s", finished["id"]
    )
    assert 0 < recorded <= sim_to_real["real_transitions"] <= 40
    ((dreamed,),) = ask(
        "SELECT count(*) FROM replay.transitions WHERE source = 'dream' AND job_id = %s", finished["id"]
    )
    assert dreamed == 0, "real_only: the dream's own rows do not ground the dream"


def test_the_real_engine_was_stepped_exactly_as_often_as_the_report_says(
    finished: dict[str, Any], ask: Callable[..., list[Any]]
) -> None:
    reported = sum(result.get("real_transitions") or 0 for result in results_of(finished))
    ((audited,),) = ask("SELECT count(*) FROM bridge.audit WHERE job_id = %s AND disposition = 'sent'", finished["id"])
    assert audited == reported > 0
    over = ask("SELECT * FROM bridge.budgets WHERE transitions_used > transition_limit")
    assert over == []


def test_rollouts_in_the_dream_went_through_the_experience_service(finished: dict[str, Any]) -> None:
    grpo = results_of(finished)[4]
    assert grpo["source"] == "dream"
    assert grpo["dream_transitions"] > 0
    assert grpo["real_transitions"] == 0
    assert grpo["episodes"] == 2 * 3 * 3
    assert grpo["experience_model"] == results_of(finished)[0]["model"]["version"]


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
    real = results_of(finished)[3]["real"]
    assert real["n"] == 4
    assert 0 <= real["low"] <= real["value"] <= real["high"] <= 1
    assert set(real["per_task"].values()) <= {0, 1}


def test_fidelity_is_measured_on_tasks_that_were_not_trained_on(finished: dict[str, Any]) -> None:
    fidelity = results_of(finished)[1]
    assert fidelity["n"] > 0
    assert fidelity["malformed"] < fidelity["n"], "the trained model writes transitions that can be read"


def test_recorded_actions_are_played_again_in_the_dream(client: DreamGym, finished: dict[str, Any]) -> None:
    measured, model = results_of(finished)[1], results_of(finished)[0]["model"]
    rollouts = measured["rollouts"]
    assert rollouts["n"] + rollouts["failed"] == 2
    assert 0 <= rollouts["exact_steps"] <= rollouts["mean_steps"]
    kept = client.models.get(model["version"]).to_json()["fidelity"]
    assert kept["state_exact"] == measured["state_exact"]["value"]
    assert kept["rollout_consistency"] == rollouts["consistency"]["value"]


def test_events_replay_from_the_id_that_a_client_saw_last(client: DreamGym, finished: dict[str, Any]) -> None:
    events = list(client.jobs.events(finished["id"]))
    middle = len(events) // 2
    rest = list(client.jobs.events(finished["id"], last_event_id=events[middle].id))
    assert [event.id for event in rest] == [event.id for event in events[middle + 1 :]]
