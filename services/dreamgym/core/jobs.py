"""Job specifications: one discriminated union, each kind with defaults that work.

`{"kind": "pipeline", "environment": "household"}` alone trains an agent. Unknown fields are refused by name. Where a field
names a model, `latest` means the newest of that role that this job made, else the environment's newest; `base` means the
common base that the platform ships. A policy may also start from `smollm2-135m`, a pretrained model from a package.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dreamgym.core.errors import InvalidInputError
from dreamgym.core.pretrained import SMOLLM2

BUILT_IN_POLICIES = frozenset({"latest", "base", SMOLLM2})
BUILT_IN_EXPERIENCE_MODELS = frozenset({"latest", "base"})

Fraction = Annotated[float, Field(ge=0, le=1)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Optimizer(_Spec):
    """AdamW with linear warm-up, then constant or cosine decay to a tenth."""

    learning_rate: float = Field(3e-4, gt=0, le=0.1)
    warmup_steps: int = Field(10, ge=0)
    schedule: Literal["constant", "cosine"] = "cosine"
    weight_decay: float = Field(0.01, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    trained_layers: int | None = Field(
        None, ge=1, description="Only this many of the last decoder layers are trained; None: the whole model."
    )
    tokens_per_batch: int = Field(8192, ge=256, description="Tokens, padding included, of one optimiser step.")


class Rollouts(_Spec):
    """How episodes are played, in the dream and in the real environment alike."""

    max_steps: int = Field(15, ge=1, le=200)
    temperature: float = Field(1.0, ge=0, le=2)
    max_action_tokens: int = Field(24, ge=1, le=1024)
    concurrency: int = Field(32, ge=1, le=1024, description="Episodes that are played at the same time.")
    turn_deadline_s: float = Field(120.0, gt=0)
    start_deadline_s: float = Field(
        1800.0, ge=0, description="How long an episode waits for a place in an environment that is full."
    )
    max_consecutive_invalid: int = Field(6, ge=1)


class TrainExperienceModel(_Spec):
    kind: Literal["train_experience_model"] = "train_experience_model"
    base: str = "base"
    annotator: Literal["builtin", "teacher"] = "builtin"
    epochs: float = Field(2.0, gt=0, le=100)
    time_limit_s: float | None = Field(None, gt=0, description="Stops training early; the report says so.")
    optimizer: Optimizer = Optimizer(learning_rate=6e-4, warmup_steps=20)
    retrieved_per_step: int = Field(2, ge=0, le=16, description="k: similar transitions in the prompt.")
    heldout_share: Fraction = Field(
        0.1, description="Share of seed episodes (whole tasks) kept for measuring fidelity."
    )
    world_sheet: bool = True
    reasoning: bool = True
    renumbered_copies: int = Field(
        2, ge=1, le=16, description="Copies of each episode, all but the first with other entity numbers."
    )
    consistency: bool = Field(
        True, description="Hold the model's answers to rules that no accepted seed step contradicts."
    )
    max_episodes: int | None = Field(None, ge=1)


class MeasureFidelity(_Spec):
    kind: Literal["measure_fidelity"] = "measure_fidelity"
    experience_model: str = "latest"
    max_episodes: int = Field(40, ge=1)
    minimum_state_accuracy: Fraction = Field(0.0, description="Exact next-state accuracy below which the job stops.")
    minimum_success_f1: Fraction = Field(0.0, description="Success F1 below which the job stops.")
    retrieved_per_step: int | None = Field(None, ge=0, le=16)
    replayed_episodes: int = Field(
        20, ge=0, description="Held-out episodes whose actions are played again in the dream, to compare the outcomes."
    )


class _Reinforcement(_Spec):
    """What shapes the policy loss, in the dream and in reality alike (METHOD section 6)."""

    policy: str = "latest"
    kl_coefficient: float = Field(0.01, ge=0)
    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.28, gt=0)
    normalize_std: bool = True
    invalid_action_penalty: float = Field(0.1, ge=0)
    step_credit: float = Field(
        1.0,
        ge=0,
        description="Weight of step-level advantages (GiGPO): an action against the group's other actions in the same state. "
        "0: the episode's advantage alone (GRPO).",
    )
    discount: float = Field(0.95, gt=0, le=1, description="Of step-level returns.")
    refill_rounds: int = Field(
        0, ge=0, le=8, description="How often an iteration plays further tasks in place of groups that all ended alike."
    )
    horizon_steps: tuple[Annotated[int, Field(ge=1, le=200)], ...] = Field(
        (),
        max_length=32,
        description="Step limits of equal stretches of the iterations, such as (8, 12, 15), up to rollouts.max_steps; "
        "empty: that throughout.",
    )
    time_limit_s: float | None = Field(
        None,
        gt=0,
        description="No iteration begins that would end later, going by the mean of those before it; the first always runs. "
        "The report says so.",
    )


class TrainPolicy(_Reinforcement):
    kind: Literal["train_policy"] = "train_policy"
    algorithm: Literal["sft", "grpo", "expert_iteration"] = "grpo"
    source: Literal["dream", "real"] = "dream"
    experience_model: str = "latest"
    ignore_fidelity_floor: bool = Field(False, description="Train even in a dream below the environment's floor.")
    # Supervised warm start
    demonstrations: int = Field(120, ge=1, description="Successful seed episodes that the warm start imitates.")
    epochs: float = Field(4.0, gt=0)
    relabelled_copies: int = Field(
        12, ge=1, le=64, description="Copies of each demonstration, all but the first with other numbers and names."
    )
    action_vocabulary: Literal["open", "seen", "choices"] = Field(
        "choices",
        description="Warm start only, kept by the model: `choices` picks among the actions that the texts leave open "
        "(`seen` where none can be listed); `seen` lets actions hold only words of the episode and of the format.",
    )
    imitated_per_group: int = Field(
        3, ge=1, description="Expert iteration: most successes of a group that are imitated."
    )
    # Reinforcement learning
    iterations: int = Field(10, ge=1)
    tasks_per_iteration: int = Field(16, ge=1)
    group_size: int = Field(8, ge=2, description="n: rollouts of one task under one policy version.")
    minibatches: int = Field(4, ge=1, description="Optimiser steps of one pass over an iteration's episodes.")
    synthetic_share: Fraction = Field(0.25, description="lambda: largest share of generated tasks in an iteration.")
    self_judged: bool = Field(False, description="Ignore success criteria and trust the model's own flag (ablation).")
    retrieved_per_step: int | None = Field(None, ge=0, le=16)
    real_transition_budget: int = Field(0, ge=0, description="Only with source `real`: steps that may be taken.")
    checkpoint_every: int = Field(1, ge=1)
    canary_every: int = Field(0, ge=0, description="Iterations between canaries in the real engine; 0: none.")
    canary_episodes: int = Field(16, ge=1)
    canary_max_gap: Fraction = Field(0.2, description="Dream minus real success at which the canary stops the run.")
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, warmup_steps=3, schedule="constant")
    rollouts: Rollouts = Rollouts()


class Evaluate(_Spec):
    kind: Literal["evaluate"] = "evaluate"
    label: str = Field("evaluation", max_length=60)
    policy: str = "latest"
    experience_model: str = "latest"
    where: Literal["real", "dream", "both"] = "both"
    split: str = "test"
    episodes: int = Field(60, ge=1, description="Tasks, one episode each; the same tasks for every evaluation.")
    real_transition_budget: int | None = Field(None, ge=0, description="None: episodes x max_steps.")
    seed: int = 1234
    rollouts: Rollouts = Rollouts(temperature=0.4)


class SimToReal(_Reinforcement):
    """Continue RL on the real environment with a small, enforced budget of real transitions (METHOD section 7)."""

    kind: Literal["sim_to_real"] = "sim_to_real"
    real_transition_budget: int = Field(600, ge=1)
    tasks_per_iteration: int = Field(4, ge=1)
    group_size: int = Field(6, ge=2)
    iterations: int = Field(50, ge=1, description="Upper limit; the budget usually ends the stage first.")
    minibatches: int = Field(2, ge=1)
    optimizer: Optimizer = Optimizer(learning_rate=5e-5, warmup_steps=2, schedule="constant")
    rollouts: Rollouts = Rollouts(concurrency=4)


class Reembed(_Spec):
    """Embed the environment's stored transitions anew, after the replay service was given another encoder."""

    kind: Literal["reembed"] = "reembed"


Stage = Annotated[
    TrainExperienceModel | MeasureFidelity | TrainPolicy | Evaluate | SimToReal | Reembed, Field(discriminator="kind")
]


def _default_stages() -> tuple[Stage, ...]:
    return (
        TrainExperienceModel(),
        MeasureFidelity(),
        TrainPolicy(algorithm="sft", policy="base", optimizer=Optimizer(learning_rate=5e-4)),
        Evaluate(label="warm start"),
        TrainPolicy(algorithm="grpo"),
        Evaluate(label="after the dream"),
        SimToReal(),
        Evaluate(label="after sim-to-real"),
    )


class _Job(_Spec):
    environment: str = Field(min_length=1, description="Name or id of the environment.")
    seed: int = 0
    name: str = Field("", max_length=120)


class PipelineJob(_Job):
    kind: Literal["pipeline"] = "pipeline"
    stages: tuple[Stage, ...] = Field(default_factory=_default_stages, min_length=1, max_length=32)


class TrainExperienceModelJob(_Job, TrainExperienceModel): ...


class MeasureFidelityJob(_Job, MeasureFidelity): ...


class TrainPolicyJob(_Job, TrainPolicy): ...


class EvaluateJob(_Job, Evaluate):
    seed: int = 1234


class SimToRealJob(_Job, SimToReal): ...


class ReembedJob(_Job, Reembed): ...


JobSpec = Annotated[
    PipelineJob
    | TrainExperienceModelJob
    | MeasureFidelityJob
    | TrainPolicyJob
    | EvaluateJob
    | SimToRealJob
    | ReembedJob,
    Field(discriminator="kind"),
]

_JOB: TypeAdapter[JobSpec] = TypeAdapter(JobSpec)
_STAGE: TypeAdapter[Stage] = TypeAdapter(Stage)
_JOB_FIELDS = set(_Job.model_fields)


def parse_job(data: Any) -> JobSpec:
    """Validate a job; raise InvalidInputError naming every faulty field and the remedy."""
    job: JobSpec = _parse(_JOB, data, "job")
    return job


def parse_stage(data: Any) -> Stage:
    """Validate one stage, as stored with a job."""
    stage: Stage = _parse(_STAGE, data, "stage")
    return stage


def stages_of(job: JobSpec) -> tuple[Stage, ...]:
    """A job's ordered stages; a job of a single kind is a pipeline of one stage."""
    if isinstance(job, PipelineJob):
        return job.stages
    exclude = _JOB_FIELDS - ({"seed"} if job.kind == "evaluate" else set())
    return (parse_stage(job.model_dump(mode="json", exclude=exclude)),)


def _parse(adapter: TypeAdapter[Any], data: Any, what: str) -> Any:
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        faults = "; ".join(f"{_path(e['loc'])}: {e['msg']}" for e in error.errors()[:8])
        unknown = [str(e["loc"][-1]) for e in error.errors() if e["type"] == "extra_forbidden"]
        remedy = f"Remove or rename {', '.join(unknown)}." if unknown else "See the job schema in /openapi.json."
        raise InvalidInputError(f"This {what} is not valid: {faults}.", remedy=remedy) from error


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "(top level)"
