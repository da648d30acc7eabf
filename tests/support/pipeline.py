"""What the tests of the main job share: the example data, and a pipeline of minimal size."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples" / "household"
TASKS = 24


def example_lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(EXAMPLES / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def minimal_stages(*, grpo_iterations: int = 2) -> list[dict[str, Any]]:
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


def results_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [stage["result"] for stage in job["stages"]]
