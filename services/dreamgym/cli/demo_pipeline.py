"""The demo's job: the stages of the household pipeline, in full and in quick."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Size:
    """What tells the quick demo from the full one; times in seconds, spent in full on two idle cores."""

    experience_s: float
    fidelity_episodes: int
    demonstrations: int
    epochs: float
    warm_start_s: float
    evaluation_episodes: int
    iterations: int
    tasks_per_iteration: int
    group_size: int
    dream_s: float
    real_transitions: int
    real_tasks: int
    real_group: int
    real_s: float


FULL = Size(
    experience_s=150,
    fidelity_episodes=30,
    demonstrations=280,
    epochs=12,
    warm_start_s=100,
    evaluation_episodes=60,
    iterations=12,
    tasks_per_iteration=10,
    group_size=8,
    dream_s=180,
    real_transitions=800,
    real_tasks=6,
    real_group=6,
    real_s=60,
)
"""About 12 minutes with everything around it; the time limits keep it there on slower machines."""
QUICK = Size(
    experience_s=35,
    fidelity_episodes=12,
    demonstrations=120,
    epochs=8,
    warm_start_s=25,
    evaluation_episodes=16,
    iterations=3,
    tasks_per_iteration=8,
    group_size=4,
    dream_s=30,
    real_transitions=150,
    real_tasks=2,
    real_group=4,
    real_s=20,
)
"""The same loop in under five minutes: it shows that everything works, not how well an agent can become."""


def pipeline(*, quick: bool = False) -> dict[str, Any]:
    """The job to launch. Every evaluation plays the same held-out tasks, so that stages can be compared task by task."""
    return {
        "kind": "pipeline",
        "environment": ENVIRONMENT,
        "name": "demo, quick" if quick else "demo",
        "seed": 7,
        "stages": _stages(QUICK if quick else FULL),
    }


def _stages(size: Size) -> list[Stage]:
    return [
        experience_model(epochs=2) | {"time_limit_s": size.experience_s},
        {"kind": "measure_fidelity", "max_episodes": size.fidelity_episodes},
        warm_start(size.demonstrations, size.epochs) | {"relabelled_copies": 6, "time_limit_s": size.warm_start_s},
        evaluation("warm start", size.evaluation_episodes),
        reinforcement(size.iterations, size.tasks_per_iteration, size.group_size) | {"time_limit_s": size.dream_s},
        evaluation("after the dream", size.evaluation_episodes),
        sim_to_real(size.real_transitions, size.real_tasks, size.real_group) | {"time_limit_s": size.real_s},
        evaluation("after sim-to-real", size.evaluation_episodes),
    ]


def experience_model(epochs: float) -> Stage:
    return {
        "kind": "train_experience_model",
        "epochs": epochs,
        "heldout_share": 0.08,
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 10},
    }


def warm_start(demonstrations: int, epochs: float) -> Stage:
    return {
        "kind": "train_policy",
        "algorithm": "sft",
        "policy": "base",
        "demonstrations": demonstrations,
        "epochs": epochs,
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 10, "tokens_per_batch": 4096},
    }


def reinforcement(iterations: int, tasks: int, group: int) -> Stage:
    stage = {"kind": "train_policy", "algorithm": "grpo", "iterations": iterations}
    return stage | _updates(tasks, group, learning_rate=1e-4, warmup_steps=4, concurrency=128)


def sim_to_real(transitions: int, tasks: int, group: int) -> Stage:
    """A third of the dream's learning rate: an iteration has far fewer episodes, so its gradient is noisier."""
    stage = {"kind": "sim_to_real", "real_transition_budget": transitions}
    return stage | _updates(tasks, group, learning_rate=3e-5, warmup_steps=2, concurrency=12)


def _updates(tasks: int, group: int, *, learning_rate: float, warmup_steps: int, concurrency: int) -> Stage:
    return {
        "tasks_per_iteration": tasks,
        "group_size": group,
        "kl_coefficient": 0.0,
        "optimizer": {"learning_rate": learning_rate, "warmup_steps": warmup_steps, "schedule": "constant"},
        "rollouts": {"max_steps": MAX_STEPS, "concurrency": concurrency, "temperature": 0.8},
    }


def evaluation(label: str, episodes: int) -> Stage:
    """On held-out tasks, in the dream and in reality (`where` may narrow that)."""
    rollouts = {"max_steps": MAX_STEPS, "temperature": 0.4, "concurrency": 60}
    return {"kind": "evaluate", "label": label, "episodes": episodes, "rollouts": rollouts}
