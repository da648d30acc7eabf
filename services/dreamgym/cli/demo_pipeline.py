"""The demo's job: the stages of the household pipeline, in full and in quick."""

from __future__ import annotations

from typing import Any

ENVIRONMENT = "household"
MAX_STEPS = 15
DESCRIPTION = (
    "A household in text. You walk through a room, open and close receptacles, carry one thing at a time, and clean, heat "
    "or cool it with a sinkbasin, microwave or fridge. The goal is an everyday task such as `put a clean mug in cabinet`. "
    "Anything that is not possible changes nothing and is answered with `Nothing happens.`"
)
ACTION_FORMAT = (
    "One line, with names and numbers as they appear in the text: go to (receptacle) | open (receptacle) | "
    "close (receptacle) | take (object) from (receptacle) | move (object) to (receptacle) | "
    "examine (object or receptacle) | use (lamp) | clean (object) with (sinkbasin) | heat (object) with (microwave) | "
    "cool (object) with (fridge) | slice (object) with (knife) | inventory | look"
)

Stage = dict[str, Any]


def pipeline(*, quick: bool = False) -> dict[str, Any]:
    """The job to launch. Every evaluation plays the same held-out tasks, so that stages can be compared task by task."""
    return {
        "kind": "pipeline",
        "environment": ENVIRONMENT,
        "name": "demo, quick" if quick else "demo",
        "seed": 7,
        "stages": _quick_stages() if quick else _full_stages(),
    }


def _full_stages() -> list[Stage]:
    """About 13 minutes on two idle cores; time limits keep it there on slower ones."""
    evaluation: Stage = {"episodes": 60, "rollouts": {"max_steps": MAX_STEPS, "temperature": 0.4, "concurrency": 60}}
    return [
        {
            "kind": "train_experience_model",
            "epochs": 2,
            "heldout_share": 0.08,
            "time_limit_s": 150,
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 10},
        },
        {"kind": "measure_fidelity", "max_episodes": 30},
        _warm_start(demonstrations=280, epochs=12, time_limit_s=120),
        {"kind": "evaluate", "label": "warm start", **evaluation},
        {
            "kind": "train_policy",
            "algorithm": "grpo",
            "iterations": 12,
            "tasks_per_iteration": 16,
            "group_size": 8,
            "time_limit_s": 190,
            "optimizer": {"learning_rate": 1e-4, "warmup_steps": 4, "schedule": "constant"},
            "rollouts": {"max_steps": MAX_STEPS, "concurrency": 128, "temperature": 0.7},
        },
        {"kind": "evaluate", "label": "after the dream", **evaluation},
        {
            "kind": "sim_to_real",
            "real_transition_budget": 1000,
            "tasks_per_iteration": 6,
            "group_size": 6,
            "time_limit_s": 60,
            "optimizer": {"learning_rate": 1e-4, "warmup_steps": 2, "schedule": "constant"},
            "rollouts": {"max_steps": MAX_STEPS, "concurrency": 12},
        },
        {"kind": "evaluate", "label": "after sim-to-real", **evaluation},
    ]


def _quick_stages() -> list[Stage]:
    """The same loop in under five minutes: it shows that everything works, not how well an agent can become."""
    evaluation: Stage = {"episodes": 16, "rollouts": {"max_steps": MAX_STEPS, "temperature": 0.4, "concurrency": 60}}
    return [
        {
            "kind": "train_experience_model",
            "epochs": 1,
            "heldout_share": 0.08,
            "time_limit_s": 45,
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 10},
        },
        {"kind": "measure_fidelity", "max_episodes": 12},
        _warm_start(demonstrations=120, epochs=8, time_limit_s=30),
        {"kind": "evaluate", "label": "warm start", **evaluation},
        {
            "kind": "train_policy",
            "algorithm": "grpo",
            "iterations": 3,
            "tasks_per_iteration": 8,
            "group_size": 4,
            "time_limit_s": 40,
            "rollouts": {"max_steps": MAX_STEPS},
        },
        {"kind": "evaluate", "label": "after the dream", **evaluation},
        {
            "kind": "sim_to_real",
            "real_transition_budget": 150,
            "tasks_per_iteration": 2,
            "group_size": 4,
            "time_limit_s": 30,
            "rollouts": {"max_steps": MAX_STEPS, "concurrency": 4},
        },
        {"kind": "evaluate", "label": "after sim-to-real", **evaluation},
    ]


def _warm_start(*, demonstrations: int, epochs: float, time_limit_s: float) -> Stage:
    return {
        "kind": "train_policy",
        "algorithm": "sft",
        "policy": "base",
        "demonstrations": demonstrations,
        "epochs": epochs,
        "time_limit_s": time_limit_s,
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 10, "tokens_per_batch": 4096},
    }
