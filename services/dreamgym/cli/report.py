"""What a pipeline job achieved, from its JSON alone: pure functions from the job to one report value.

The report puts the real environment's verdict beside the dream's own and says in words what did not help. It is made of
unfinished and failed jobs as well: what was not measured is absent, never zero.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dreamgym.cli.report_fidelity import Fidelity, read_fidelity
from dreamgym.cli.report_reading import count, items, number, outcomes, proportion, seconds_between, section, text
from dreamgym.core.paired_outcomes import Difference, paired_outcomes
from dreamgym.core.statistics import Proportion

FORMAT = 1


@dataclass(frozen=True)
class Run:
    """What was measured around the job: time in seconds, memory in bytes, and where things are."""

    seconds: float | None = None
    peak_memory_bytes: int | None = None
    gateway_url: str = ""
    object_store: str = ""
    start_command: str = ""
    """What starts the platform again with all that it learnt; empty where it goes on running."""
    quick: bool = False
    cores: int | None = None


@dataclass(frozen=True)
class Played:
    """The result of one evaluation in one place, the dream or the real environment."""

    success: Proportion
    invalid_rate: float | None
    mean_steps: float | None
    failed_episodes: int
    transitions: int | None
    per_task: dict[str, float]
    by_type: dict[str, Proportion]


@dataclass(frozen=True)
class CurvePoint:
    """One iteration of reinforcement learning."""

    iteration: int
    success: float | None
    reward: float | None
    kl: float | None
    entropy: float | None
    invalid_rate: float | None
    groups_used: int | None
    groups_zero_variance: int | None
    failed_episodes: int | None
    real_success: float | None
    """The canary: success in the real engine, in the iterations that played one."""


@dataclass(frozen=True)
class Stage:
    """One stage as the report shows it. `effect` compares the real evaluations just after and just before it."""

    index: int
    kind: str
    title: str
    state: str
    seconds: float | None
    tokens: int | None
    real_transitions: int | None
    dream_transitions: int | None
    real: Played | None = None
    dream: Played | None = None
    to_start: Difference | None = None
    dream_minus_real: Difference | None = None
    effect: Difference | None = None
    curve: tuple[CurvePoint, ...] = ()
    training_success: tuple[float, float] | None = None
    """Success on training tasks in the first and last iteration, in the world that the stage trains in."""
    trains_in: str = ""
    """`dream` or `real`; empty for a stage that does not train by reinforcement."""
    lost: dict[str, int] = field(default_factory=dict)
    """Failed episodes by place, where no episode counted at all."""
    loss: tuple[float, float] | None = None
    budget: int | None = None
    stopped_by: str = ""
    error: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def trains_policy(self) -> bool:
        return self.kind in ("train_policy", "sim_to_real")


@dataclass(frozen=True)
class TrainedModel:
    role: str
    id: str
    version: str
    location: str
    stage: int


@dataclass(frozen=True)
class Report:
    job_id: str
    name: str
    environment: str
    state: str
    error: str
    run: Run
    stages: tuple[Stage, ...]
    fidelity: Fidelity | None
    models: tuple[TrainedModel, ...]

    @property
    def evaluations(self) -> tuple[Stage, ...]:
        """The evaluations that measured something, in order."""
        return tuple(stage for stage in self.stages if stage.real or stage.dream)

    @property
    def real_transitions(self) -> int:
        """Real transitions that training consumed; those that measured are not counted."""
        return sum(stage.real_transitions or 0 for stage in self.stages if stage.kind != "evaluate")

    @property
    def real_transitions_measuring(self) -> int:
        return sum(stage.real_transitions or 0 for stage in self.stages if stage.kind == "evaluate")

    def to_json(self, findings: list[dict[str, str]]) -> dict[str, Any]:
        """The report as JSON, with the sentences that `report_findings` says about it."""
        return {"format": FORMAT, **dataclasses.asdict(self), "findings": findings}


def build_report(job: Mapping[str, Any], run: Run = Run()) -> Report:
    """Read a job as the gateway gives it."""
    stages = [_read_stage(index, data, job) for index, data in enumerate(items(job, "stages"))]
    error = section(job, "error")
    return Report(
        job_id=text(job, "id"),
        name=text(job, "name"),
        environment=text(section(job, "environment"), "name")
        or text(job, "environment")
        or text(section(job, "spec"), "environment"),
        state=text(job, "state") or "unknown",
        error=_error_text(error) or text(job, "error"),
        run=run,
        stages=tuple(_with_effects(_with_differences(stages))),
        fidelity=_newest_fidelity(items(job, "stages")),
        models=tuple(_models(items(job, "stages"))),
    )


def _read_stage(position: int, data: Mapping[str, Any], job: Mapping[str, Any]) -> Stage:
    result, spec = section(data, "result"), section(data, "spec")
    kind = text(data, "kind") or text(spec, "kind")
    index = count(data, "index")
    real, dream = _read_played(section(result, "real")), _read_played(section(result, "dream"))
    seconds = number(result, "seconds")
    trains_in = _trains_in(kind, spec)
    first, last = number(result, f"{trains_in}_success_first"), number(result, f"{trains_in}_success_last")
    loss_start, loss_end = number(result, "loss_start"), number(result, "loss_end")
    return Stage(
        index=position if index is None else index,
        kind=kind,
        title=stage_title(kind, spec, result),
        state=text(data, "state") or "pending",
        seconds=seconds_between(data.get("started_at"), data.get("finished_at")) if seconds is None else seconds,
        tokens=count(result, "tokens"),
        real_transitions=real.transitions if real else count(result, "real_transitions"),
        dream_transitions=dream.transitions if dream else count(result, "dream_transitions"),
        real=real,
        dream=dream,
        dream_minus_real=paired_outcomes(real.per_task, dream.per_task) if real and dream else None,
        curve=tuple(_read_point(i, point) for i, point in enumerate(items(result, "curve"))),
        training_success=None if first is None or last is None else (first, last),
        trains_in=trains_in,
        lost={
            place: failed
            for place, played in (("real", real), ("dream", dream))
            if played is None and (failed := count(section(result, place), "failed_episodes"))
        },
        loss=None if loss_start is None or loss_end is None else (loss_start, loss_end),
        budget=count(result, "budget") or count(spec, "real_transition_budget"),
        stopped_by=text(result, "stopped_by"),
        error=_error_text(section(data, "error")) or text(data, "error") or text(result, "error"),
        facts={
            key: result[key]
            for key in ("episodes", "transitions", "heldout_episodes", "epochs_done", "demonstrations", "annotator")
            if isinstance(result.get(key), int | float | str)
        },
    )


def _read_played(data: Mapping[str, Any]) -> Played | None:
    success = proportion(data)
    if success is None:
        return None
    by_type = {name: proportion(part, value="success") for name, part in section(data, "by_type").items()}
    return Played(
        success=success,
        invalid_rate=number(data, "invalid_rate"),
        mean_steps=number(data, "mean_steps"),
        failed_episodes=count(data, "failed_episodes") or 0,
        transitions=count(data, "transitions"),
        per_task=outcomes(data),
        by_type={name: part for name, part in by_type.items() if part is not None},
    )


def _read_point(position: int, data: Mapping[str, Any]) -> CurvePoint:
    iteration = count(data, "iteration")
    canary = data.get("canary")
    real = proportion(section(canary, "real")) or proportion(canary)
    if real is not None:
        real_success: float | None = real.value
    else:
        found = [number(data, "canary"), *(number(canary, key) for key in ("real", "real_success", "success", "value"))]
        real_success = next((value for value in found if value is not None), None)
    return CurvePoint(
        iteration=position + 1 if iteration is None else iteration,
        success=number(data, "success"),
        reward=number(data, "reward"),
        kl=number(data, "kl"),
        entropy=number(data, "entropy"),
        invalid_rate=number(data, "invalid_rate"),
        groups_used=count(data, "groups_used"),
        groups_zero_variance=count(data, "groups_zero_variance"),
        failed_episodes=count(data, "failed_episodes"),
        real_success=real_success,
    )


def _trains_in(kind: str, spec: Mapping[str, Any]) -> str:
    if kind == "train_policy" and text(spec, "algorithm") != "sft":
        return "real" if text(spec, "source") == "real" else "dream"
    return "real" if kind == "sim_to_real" else ""


def stage_title(kind: str, spec: Mapping[str, Any], result: Mapping[str, Any] | None = None) -> str:
    """A stage's name for people."""
    if kind == "evaluate":
        return f"measured: {text(result or {}, 'label') or text(spec, 'label') or 'evaluation'}"
    if kind == "train_policy":
        if text(spec, "algorithm") == "sft":
            return "warm start from demonstrations"
        if text(spec, "algorithm") == "expert_iteration":
            return "expert iteration in the dream"
        place = "the real environment" if text(spec, "source") == "real" else "the dream"
        return f"reinforcement learning in {place}"
    return {
        "train_experience_model": "train the experience model",
        "measure_fidelity": "measure the dream's fidelity",
        "reembed": "embed the stored transitions anew",
        "sim_to_real": "sim-to-real on a budget",
    }.get(kind, kind or "unknown stage")


def _with_differences(stages: list[Stage]) -> list[Stage]:
    """Give every real evaluation after the first its paired difference to the first."""
    start = next((stage for stage in stages if stage.real), None)
    result = []
    for stage in stages:
        if start and start.real and stage.real and stage is not start:
            difference = paired_outcomes(start.real.per_task, stage.real.per_task)
            result.append(dataclasses.replace(stage, to_start=difference))
        else:
            result.append(stage)
    return result


def _with_effects(stages: list[Stage]) -> list[Stage]:
    """Give a stage that alone changed the policy between two real evaluations the difference between those."""
    result = list(stages)
    measured = [position for position, stage in enumerate(stages) if stage.real]
    for before, after in itertools.pairwise(measured):
        trained = [position for position in range(before, after) if stages[position].trains_policy]
        old, new = stages[before].real, stages[after].real
        if len(trained) == 1 and old and new:
            effect = paired_outcomes(old.per_task, new.per_task)
            result[trained[0]] = dataclasses.replace(stages[trained[0]], effect=effect)
    return result


def _newest_fidelity(stages: list[Mapping[str, Any]]) -> Fidelity | None:
    results = [section(stage, "result") for stage in stages if text(stage, "kind") == "measure_fidelity"]
    return next((found for found in map(read_fidelity, reversed(results)) if found), None)


def _models(stages: list[Mapping[str, Any]]) -> list[TrainedModel]:
    found = []
    for position, stage in enumerate(stages):
        kind, model = text(stage, "kind"), section(stage, "result").get("model")
        if kind not in ("train_experience_model", "train_policy", "sim_to_real") or not model:
            continue
        role = "experience" if kind == "train_experience_model" else "policy"
        if isinstance(model, Mapping):
            found.append(
                TrainedModel(role, text(model, "id"), text(model, "version"), text(model, "location"), position)
            )
        else:
            found.append(TrainedModel(role, "", str(model), "", position))
    return found


def _error_text(error: Mapping[str, Any]) -> str:
    return f"{text(error, 'message') or text(error, 'detail')} {text(error, 'remedy')}".strip()
