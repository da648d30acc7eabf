"""A finished pipeline job as the gateway gives it, made by hand: small, with every part that a report can show."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from dreamgym.core.statistics import wilson

TYPES = ("pick_and_place_simple", "pick_heat_then_place_in_recep", "look_at_obj_in_light")


def played(rate: float, n: int = 60, *, seed: int = 1, failed: int = 0) -> dict[str, Any]:
    """One place's part of an evaluation; the same seed keeps tasks comparable across rates."""
    rng = random.Random(seed)
    outcomes = {f"test-{index:03d}": int(rng.random() < rate) for index in range(n)}
    successes = sum(outcomes.values())
    of_type = {kind: [v for i, v in enumerate(outcomes.values()) if i % 3 == k] for k, kind in enumerate(TYPES)}
    return {
        **rate_of(successes, n),
        "successes": successes,
        "invalid_rate": 0.08,
        "mean_steps": 9.4,
        "failed_episodes": failed,
        "transitions": round(9.4 * n),
        "per_task": outcomes,
        "by_type": {kind: {"n": len(values), "success": sum(values) / len(values)} for kind, values in of_type.items()},
    }


@pytest.fixture
def make() -> SimpleNamespace:
    """The functions above and below, for tests that change a part of the job."""
    return SimpleNamespace(
        job=pipeline_job, played=played, stage=stage, evaluation=evaluation, fidelity=fidelity_result
    )


def rate_of(successes: int, n: int) -> dict[str, Any]:
    interval = wilson(successes, n)
    return {"value": interval.value, "low": interval.low, "high": interval.high, "n": n}


def stage(
    index: int, kind: str, result: dict[str, Any] | None, state: str = "succeeded", **spec: Any
) -> dict[str, Any]:
    return {"index": index, "kind": kind, "state": state, "spec": {"kind": kind, **spec}, "result": result}


def evaluation(index: int, label: str, real: float, dream: float, **real_options: Any) -> dict[str, Any]:
    result = {
        "label": label,
        "policy": f"policy-{index}",
        "real": played(real, **real_options),
        "dream": played(dream),
        "seconds": 41.2,
        "tokens": 52_000,
    }
    return stage(index, "evaluate", result, label=label)


def model(role: str, number: int) -> dict[str, str]:
    version = f"{role}-household-{number:04d}"
    return {"id": f"mdl_{number}", "version": version, "location": f"models/{version}"}


def curve(first: float, last: float, iterations: int, canaries: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    points = []
    for index in range(iterations):
        success = first + (last - first) * index / max(1, iterations - 1) + 0.03 * (-1) ** index
        points.append(
            {
                "iteration": index + 1,
                "success": success,
                "reward": success - 0.1,
                "kl": 0.002 * index,
                "entropy": 1.1 - 0.04 * index,
                "invalid_rate": 0.2 - 0.012 * index,
                "groups_used": 11,
                "groups_zero_variance": 5,
                "failed_episodes": 0,
                "seconds": 20.0,
                **({"canary": {"real": success - 0.12, "dream": success}} if index + 1 in canaries else {}),
            }
        )
    return points


def fidelity_result() -> dict[str, Any]:
    return {
        "n": 412,
        "state_exact": rate_of(323, 412),
        "state_similarity": 0.91,
        "success": {"precision": 0.83, "recall": 0.94, "f1": 0.88},
        "done_f1": 0.9,
        "invalid_action": {"precision": 0.88, "recall": 0.71},
        "by_action": {
            "go": {"n": 190, "exact": 0.86},
            "take": {"n": 75, "exact": 0.92},
            "open": {"n": 61, "exact": 0.41},
            "heat": {"n": 9, "exact": 1.0},
        },
        "malformed": 5,
        "confidence_calibration": [
            {"confidence": "0.5 to 0.8", "exact": 0.4, "n": 60},
            {"confidence": "0.8 to 0.95", "exact": 0.71, "n": 140},
            {"confidence": "0.95 to 1", "exact": 0.93, "n": 212},
        ],
        "examples": [
            {
                "task": "put a hot mug in cabinet",
                "action": "open microwave 1",
                "dream": "You open the microwave 1. The microwave 1 is open. In it, you see a mug 1.",
                "real": "You open the microwave 1. The microwave 1 is open. In it, you see nothing.",
                "reasoning": "the microwave is closed; the sheet places mug 1 there <not escaped & yet>",
            },
            *[
                {
                    "task": f"examine the book {number} with the desklamp",
                    "action": f"go to shelf {number}",
                    "dream": f"You arrive at shelf {number}. On the shelf {number}, you see a book 1.",
                    "real": f"You arrive at shelf {number}. On the shelf {number}, you see nothing.",
                    "reasoning": "",
                }
                for number in range(1, 5)
            ],
        ],
        "seconds": 63.0,
        "tokens": 91_000,
    }


def pipeline_job() -> dict[str, Any]:
    """Eight stages: the dream helps the agent, sim-to-real changes nothing measurable."""
    grpo = {
        "model": model("policy", 4),
        "iterations_done": 12,
        "dream_success_first": 0.31,
        "dream_success_last": 0.74,
        "curve": curve(0.31, 0.74, 12, canaries=(4, 8, 12)),
        "episodes": 1536,
        "dream_transitions": 14_022,
        "real_transitions": 0,
        "tokens": 1_900_000,
        "seconds": 402.0,
    }
    s2r = {**grpo, "model": model("policy", 6), "curve": curve(0.55, 0.6, 3), "real_transitions": 588, "budget": 600}
    s2r |= {"real_success_first": 0.55, "real_success_last": 0.6}
    s2r |= {
        "iterations_done": 3,
        "seconds": 77.0,
        "stopped_by": "budget of 600 real transitions spent",
        "dream_transitions": 0,
    }
    return {
        "id": "job_01",
        "kind": "pipeline",
        "name": "household demo",
        "state": "succeeded",
        "environment": {"id": "env_01", "name": "household"},
        "stages": [
            stage(
                0,
                "train_experience_model",
                {
                    "model": model("experience", 1),
                    "episodes": 400,
                    "transitions": 4100,
                    "heldout_episodes": 44,
                    "epochs_done": 2.0,
                    "loss_start": 4.1,
                    "loss_end": 0.42,
                    "tokens": 2_400_000,
                    "seconds": 190.0,
                    "annotator": "builtin",
                },
            ),
            stage(1, "measure_fidelity", fidelity_result()),
            stage(
                2,
                "train_policy",
                {
                    "model": model("policy", 2),
                    "demonstrations": 120,
                    "loss_start": 3.0,
                    "loss_end": 0.6,
                    "tokens": 400_000,
                    "seconds": 38.0,
                },
                algorithm="sft",
            ),
            evaluation(3, "warm start", 0.28, 0.33),
            stage(4, "train_policy", grpo, algorithm="grpo", source="dream"),
            evaluation(5, "after the dream", 0.55, 0.78, failed=2),
            stage(6, "sim_to_real", s2r),
            evaluation(7, "after sim-to-real", 0.57, 0.75),
        ],
    }
