"""Does RL in the dream raise success in the real engine? `make bench-learn`, hours long, resumable.

For each seed: a start (experience model, fidelity, warm start), then from the same start the arms `dream` (RL in the dream
under a canary), `real` (the same number of updates in the real engine: the control), `s2r` (the dream's policy, then a tenth
of the control's real transitions), `expert` (expert iteration in the dream), `more_sft` (its control: as many epochs on the
demonstrations alone), `exploit` (the model's own success flag as reward, which the canary should stop) and the ablations.
Every arm is measured in the real engine on the same held-out tasks. Each is a job of its own with a fixed idempotency key, so
running the command again goes on where it stopped.

The defaults are those of the pretrained policy. For the small base: --policy base --iterations 25 --tasks-per-iteration 16
--demonstrations 280 --warm-start-epochs 12 --learning-rate 1e-4.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results_file import Metric, write_results
from dreamgym.cli import demo_pipeline
from dreamgym.client import DreamGym
from dreamgym.client.values import Job
from dreamgym.core.job_states import JobState
from dreamgym.core.paired_outcomes import paired_outcomes
from dreamgym.core.pretrained import SMOLLM2
from dreamgym.embedded.platform import EmbeddedPlatform

DREAMED: dict[str, dict[str, Any]] = {
    "dream": {},
    "exploit": {"self_judged": True, "canary_every": 3},
    "no_retrieval": {"retrieved_per_step": 0},
    "no_generated_tasks": {"synthetic_share": 0.0},
    "no_step_credit": {"step_credit": 0.0},
}
"""Arms in the dream, and in what their training differs from `dream`."""
ARMS = (*DREAMED, "real", "s2r", "expert", "more_sft", "no_reasoning", "no_choices")
POLICIES: dict[str, dict[str, dict[str, Any]]] = {
    "base": {"warm_start": {}, "reinforcement": {}},
    SMOLLM2: {
        "warm_start": {
            "relabelled_copies": 1,
            "optimizer": {"learning_rate": 2e-4, "warmup_steps": 10, "tokens_per_batch": 2048},
        },
        "reinforcement": {
            "minibatches": 2,
            "checkpoint_every": 5,
            "optimizer": {"warmup_steps": 4, "schedule": "constant", "trained_layers": 10},
        },
    },
}
"""What the policy starts from, and in what its stages then differ from the demo's."""
EXAMPLES = Path("examples/household")
Stage = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How much is spent; the defaults are hours on two cores."""

    iterations: int
    tasks_per_iteration: int
    group_size: int
    episodes: int
    demonstrations: int
    experience_epochs: float
    warm_start_epochs: float
    learning_rate: float
    policy: str

    def warm_start(self) -> Stage:
        stage = demo_pipeline.warm_start(self.demonstrations, self.warm_start_epochs) | {"policy": self.policy}
        return stage | POLICIES[self.policy]["warm_start"]

    def reinforcement(self) -> Stage:
        stage = demo_pipeline.reinforcement(self.iterations, self.tasks_per_iteration, self.group_size)
        stage |= POLICIES[self.policy]["reinforcement"]
        return stage | {"optimizer": stage["optimizer"] | {"learning_rate": self.learning_rate}}

    def imitation(self) -> Stage:
        """How `expert` and its control `more_sft` train: two epochs from where the start stands."""
        return {
            "demonstrations": self.demonstrations,
            "epochs": 2,
            "relabelled_copies": 1,
            "optimizer": {"learning_rate": 1e-4, "warmup_steps": 10, "tokens_per_batch": 2048},
        }


@dataclass
class Arm:
    """What an arm's job measured."""

    job: Job
    results: list[dict[str, Any]] = field(default_factory=list)

    def evaluation(self, label: str) -> Mapping[str, Any]:
        return next(r for r in self.results if r.get("label") == label)

    def model(self, role: str) -> str:
        return str([r for r in self.results if r.get("model_role") == role][-1]["model"]["version"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, default=Path("runs/learn"), help="state folder; keep it to resume")
    parser.add_argument("--results", default="learn", help="name of the results file, for arms measured apart")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["dream", "real", "s2r", "exploit"])
    parser.add_argument("--iterations", type=int, default=18)
    parser.add_argument("--tasks-per-iteration", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=200, help="held-out tasks of each evaluation")
    parser.add_argument("--demonstrations", type=int, default=100)
    parser.add_argument("--experience-epochs", type=float, default=1.0)
    parser.add_argument("--warm-start-epochs", type=float, default=3.0)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--policy", choices=POLICIES, default=SMOLLM2, help="what the warm start trains")
    arguments = vars(parser.parse_args())
    given = [f"--{name.replace('_', '-')} {_words(value)}" for name, value in arguments.items() if name != "state"]
    command = f'make bench-learn LEARN="{" ".join(given)}"'
    state, seeds, arms = arguments.pop("state"), arguments.pop("seeds"), arguments.pop("arms")
    results = arguments.pop("results")
    size = Size(**arguments)
    state.mkdir(parents=True, exist_ok=True)
    metrics: list[Metric] = []
    with EmbeddedPlatform(state) as platform:
        key = (platform.state_dir / "admin.key").read_text().strip()
        with DreamGym(platform.addresses["gateway"], key) as client:
            _bring_data(client)
            for seed in seeds:
                metrics += _run_seed(client, seed, arms, size)
                print(write_results(results, command, metrics))


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _bring_data(client: DreamGym) -> None:
    client.environments.create(
        demo_pipeline.ENVIRONMENT,
        description=demo_pipeline.DESCRIPTION,
        action_format=demo_pipeline.ACTION_FORMAT,
        adapter="alfworld",
        max_steps=demo_pipeline.MAX_STEPS,
    )
    for split in ("train", "valid", "test"):
        client.environments.add_tasks(demo_pipeline.ENVIRONMENT, EXAMPLES / f"tasks-{split}.jsonl.gz")
    client.environments.add_trajectories(demo_pipeline.ENVIRONMENT, EXAMPLES / "seeds.jsonl.gz")


def _run_seed(client: DreamGym, seed: int, arms: Iterable[str], size: Size) -> list[Metric]:
    start = _run(client, seed, "start", _start(size))
    policy, experience = start.model("policy"), start.model("experience")
    before = start.evaluation("start")
    metrics = [_success(f"real_success/start/{seed}", before["real"])]
    done: dict[str, Arm] = {}
    for name in arms:
        stages = _arm(name, policy, experience, size, done)
        arm = done[name] = _run(client, seed, name, stages)
        after = arm.evaluation(name)
        metrics.append(_success(f"real_success/{name}/{seed}", after["real"]))
        if "dream" in after:
            metrics.append(_success(f"dream_success/{name}/{seed}", after["dream"]))
            hack = paired_outcomes(after["real"]["per_task"], after["dream"]["per_task"])
            if hack is not None:
                metrics.append(
                    Metric(f"hack_gap/{name}/{seed}", hack.value, "share", low=hack.low, high=hack.high, n=hack.n)
                )
        gain = paired_outcomes(before["real"]["per_task"], after["real"]["per_task"])
        if gain is not None:
            label = "real_gain_after_dream" if name == "dream" else f"real_gain_after_{name}"
            metrics.append(
                Metric(
                    f"{label}/{seed}",
                    gain.value,
                    "share",
                    low=gain.low,
                    high=gain.high,
                    n=gain.n,
                    goal="interval above 0" if name == "dream" else None,
                    holds=gain.low > 0 if name == "dream" else None,
                )
            )
        for result in arm.results:
            metrics += _canaries(f"{name}/{seed}", result)
            if str(result.get("stopped_by", "")).startswith("canary"):
                metrics.append(
                    Metric(f"canary_stopped_at/{name}/{seed}", float(result["iterations_done"]), "iteration")
                )
    return metrics


def _run(client: DreamGym, seed: int, name: str, stages: list[Stage]) -> Arm:
    """Launch an arm, or find the one that was launched before, and wait for its end."""
    spec = {"kind": "pipeline", "environment": demo_pipeline.ENVIRONMENT, "seed": seed, "stages": stages}
    job = client.jobs.launch(spec | {"name": f"learn {name} {seed}"}, idempotency_key=f"learn-{name}-{seed}")
    print(f"seed {seed}, {name}: job {job.id} is {job.state}", flush=True)
    if job.state is JobState.FAILED:
        client.jobs.retry(job.id)
    elif job.state is JobState.PAUSED:
        client.jobs.resume(job.id)
    ended = client.jobs.wait(job.id)
    if ended.state is not JobState.SUCCEEDED:
        raise SystemExit(f"{job.id} ended as {ended.state}: {ended.error}. Run the command again to retry it.")
    return Arm(ended, [stage.result or {} for stage in ended.stages])


def _start(size: Size) -> list[Stage]:
    return [
        demo_pipeline.experience_model(size.experience_epochs),
        {"kind": "measure_fidelity", "max_episodes": 40},
        size.warm_start(),
        demo_pipeline.evaluation("start", size.episodes) | {"where": "real"},
    ]


def _arm(name: str, policy: str, experience: str, size: Size, done: Mapping[str, Arm]) -> list[Stage]:
    steps = size.reinforcement() | {"policy": policy}
    watched = steps | {"canary_every": 10, "canary_episodes": 30, "canary_max_gap": 0.1}
    dream = watched | {"experience_model": experience}
    measured = demo_pipeline.evaluation(name, size.episodes)
    both, real = measured | {"experience_model": experience}, measured | {"where": "real"}
    if name in DREAMED:
        return [dream | DREAMED[name], both]
    if name == "no_choices":  # the warm start alone: what choosing is worth before any reinforcement
        return [size.warm_start() | {"action_vocabulary": "seen"}, real]
    if name == "no_reasoning":
        return [demo_pipeline.experience_model(size.experience_epochs) | {"reasoning": False}, watched, measured]
    if name == "expert":
        imitated = size.imitation() | {"algorithm": "expert_iteration", "policy": policy}
        return [size.reinforcement() | imitated | {"experience_model": experience}, both]
    if name == "more_sft":
        return [{"kind": "train_policy", "algorithm": "sft", "policy": policy} | size.imitation(), real]
    if name == "real":
        episodes = size.iterations * size.tasks_per_iteration * size.group_size
        budget = episodes * demo_pipeline.MAX_STEPS
        return [steps | {"source": "real", "real_transition_budget": budget}, real]
    if not {"dream", "real"} <= done.keys():
        raise SystemExit("The arm s2r needs the arms dream and real before it: name them first.")
    spent = int(done["real"].results[0].get("real_transitions") or 0)
    budgeted = demo_pipeline.sim_to_real(max(1, spent // 10), 8, size.group_size)
    return [budgeted | {"policy": done["dream"].model("policy")}, real]


def _canaries(arm: str, result: Mapping[str, Any]) -> list[Metric]:
    """Dream minus real success on training tasks during the run, as each canary found it."""
    found = [point["canary"] for point in result.get("curve") or [] if point.get("canary")]
    return [
        Metric(f"canary_gap/{arm}/{c['iteration']}", c["gap"], "share", low=c["low"], high=c["high"], n=c["n"])
        for c in found
    ]


def _success(name: str, measured: Mapping[str, Any]) -> Metric:
    return Metric(name, measured["value"], "share", low=measured["low"], high=measured["high"], n=measured["n"])


if __name__ == "__main__":
    main()
