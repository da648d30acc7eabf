"""What the REST API answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from dreamgym.core.environment_settings import EnvironmentSettings
from dreamgym.gateway import tables
from dreamgym.gateway.jobs import JobView

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Scope = Literal["admin", "write", "read"]


def _written_out(value: Any) -> Any:
    if value is not None and not isinstance(value, str):
        raise ValueError("must be text such as 2030-01-01T00:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_written_out)]
"""A time with its zone. A number is refused: its unit would be a guess."""


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Row(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class KeyInput(_Input):
    name: str = Field(min_length=1, max_length=100, examples=["laptop"])
    scopes: list[Scope] = Field(min_length=1, examples=[["write"]])
    expires_at: Moment | None = Field(None, examples=["2030-01-01T00:00:00Z"])


class Key(_Row):
    id: str
    name: str
    hint: str = Field(description="The key's first characters.")
    scopes: list[str]
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


class NewKey(Key):
    key: str = Field(description="The key itself; it cannot be read again.")


class KeyPage(BaseModel):
    items: list[Key]


class EnvironmentInput(_Input):
    name: Name = Field(examples=["household"])
    description: str = Field("", max_length=20_000, examples=["A house in which a robot tidies up."])
    action_format: str = Field("", max_length=20_000, examples=["One command in plain words: go to shelf 1"])
    adapter: str = Field("", max_length=100, description="The bridge's adapter of the real one; empty: only the dream.")
    max_steps: int = Field(30, ge=1, le=10_000)
    settings: EnvironmentSettings = EnvironmentSettings()

    def fields(self) -> dict[str, Any]:
        """Everything but the name, as it is stored: of the settings what differs from the defaults."""
        return {
            **self.model_dump(exclude={"name", "settings"}),
            "settings": self.settings.model_dump(mode="json", exclude_defaults=True),
        }


class EnvironmentChange(_Input):
    """What is absent stays as it is; `settings` are replaced as a whole."""

    description: str | None = Field(None, max_length=20_000)
    action_format: str | None = Field(None, max_length=20_000)
    adapter: str | None = Field(None, max_length=100)
    max_steps: int | None = Field(None, ge=1, le=10_000)
    settings: EnvironmentSettings | None = None

    def fields(self) -> dict[str, Any]:
        """The changes, as they are stored."""
        changes = self.model_dump(exclude={"settings"}, exclude_none=True)
        if self.settings is not None:
            changes["settings"] = self.settings.model_dump(mode="json", exclude_defaults=True)
        return changes


class Environment(_Row):
    id: str
    name: str
    description: str
    action_format: str
    adapter: str
    max_steps: int
    settings: dict[str, Any]
    created_at: datetime


class EnvironmentPage(BaseModel):
    items: list[Environment]
    next_cursor: str | None = None


class LineIssue(_Row):
    line: int
    reason: str
    remedy: str


class TaskUploadResult(BaseModel):
    accepted: int
    already_there: int
    issue_count: int = Field(description="All faults; `issues` lists the first 1000.")
    issues: list[LineIssue]


class Task(BaseModel):
    id: str
    instruction: str
    initial_state: str
    criterion: dict[str, Any] | None
    metadata: dict[str, Any]
    split: str
    created_at: datetime

    @classmethod
    def of(cls, row: tables.Task) -> Task:
        return cls(
            id=row.id,
            instruction=row.instruction,
            initial_state=row.initial_state,
            criterion=row.criterion,
            metadata=row.details,
            split=row.split,
            created_at=row.created_at,
        )


class TaskPage(BaseModel):
    items: list[Task]
    next_cursor: str | None = None


class TrajectoryUploadResult(BaseModel):
    episodes_stored: int
    transitions_stored: int
    already_there: int = Field(description="Episodes that an earlier upload stored.")
    tasks_created: int
    issue_count: int = Field(description="All faults; `issues` lists the first 1000.")
    issues: list[LineIssue]


class JobEnvironment(_Row):
    id: str
    name: str


class JobStage(BaseModel):
    index: int
    kind: str
    label: str
    state: str
    seconds: float | None = Field(description="Until now for a running stage.")
    started_at: datetime | None
    finished_at: datetime | None
    spec: dict[str, Any]
    result: dict[str, Any] | None


class Progress(BaseModel):
    stages_done: int
    stages_total: int
    current_stage: int | None


class MetricValue(_Row):
    stage: int
    name: str
    step: int
    value: float | None
    at: datetime

    @classmethod
    def of(cls, row: tables.JobMetric) -> MetricValue:
        return cls(stage=row.stage, name=row.name, step=row.step, value=_finite(row.value), at=row.at)


class Job(BaseModel):
    id: str
    kind: str
    name: str
    state: str
    environment: JobEnvironment
    seed: int
    attempt: int
    worker: str
    dispatch_error: str = Field(description="Why the broker did not take the job; empty if it did.")
    spec: dict[str, Any]
    progress: Progress
    stages: list[JobStage]
    newest_metrics: list[MetricValue] = Field(description="The last point of each curve; only for a single job.")
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lease_expires_at: datetime | None

    @classmethod
    def of(cls, view: JobView) -> Job:
        job = view.job
        running = [stage.index for stage in view.stages if stage.state == "running"]
        return cls(
            id=job.id,
            kind=job.kind,
            name=job.name,
            state=job.state,
            environment=JobEnvironment.model_validate(view.environment),
            seed=job.seed,
            attempt=job.attempt,
            worker=job.worker,
            dispatch_error=job.dispatch_error,
            spec=job.spec,
            progress=Progress(
                stages_done=sum(stage.state in ("succeeded", "skipped") for stage in view.stages),
                stages_total=len(view.stages),
                current_stage=running[0] if running else None,
            ),
            stages=[_stage(stage) for stage in view.stages],
            newest_metrics=[MetricValue.of(metric) for metric in view.newest_metrics],
            result=job.result,
            error=job.error,
            created_at=job.created_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            lease_expires_at=job.lease_expires_at,
        )


class JobPage(BaseModel):
    items: list[Job]
    next_cursor: str | None = None


class MetricSeries(BaseModel):
    stage: int
    name: str
    points: list[tuple[int, float | None]] = Field(description="Step and value, in order of steps.")


class Metrics(BaseModel):
    series: list[MetricSeries]


class Model(_Row):
    id: str
    role: str
    version: str
    environment_id: str
    job_id: str
    location: str
    sha256: str
    manifest: dict[str, Any]
    fidelity: dict[str, Any] | None = Field(None, description="Experience models: the newest measurement.")
    created_at: datetime


class ModelPage(BaseModel):
    items: list[Model]
    next_cursor: str | None = None


class PlayInput(_Input):
    task_id: str | None = Field(None, description="A task of the environment; else give instruction and initial_state.")
    instruction: str = Field("", max_length=20_000)
    initial_state: str = Field("", max_length=200_000)
    seed: int = Field(0, ge=-(2**63), lt=2**63)
    experience_model: str = Field("latest", description="Dream only: id, version or `latest`.")
    where: Literal["dream", "real"] = "dream"
    transition_budget: int = Field(0, ge=0, description="Real only: how many steps may be taken; 0 means none.")
    max_steps: int | None = Field(None, ge=1, le=10_000)


class ActInput(_Input):
    action: str = Field(max_length=20_000, examples=["go to shelf 1"])


class PlayObservation(BaseModel):
    session: str
    step: int
    state: str
    reward: float
    done: bool
    success: bool
    termination: str | None
    valid_action: bool
    reasoning: str
    confidence: float
    admissible_actions: list[str]
    retrieved: list[int]
    model_version: str
    world_sheet: str


class PlayStarted(PlayObservation):
    task_id: str
    instruction: str
    action_format: str
    max_steps: int


def _stage(stage: tables.JobStage) -> JobStage:
    seconds = None
    if stage.started_at is not None:
        end = stage.finished_at or (datetime.now(stage.started_at.tzinfo) if stage.state == "running" else None)
        seconds = max(0.0, (end - stage.started_at).total_seconds()) if end else None
    return JobStage(
        index=stage.index,
        kind=stage.kind,
        label=str(stage.spec.get("label") or stage.spec.get("algorithm") or ""),
        state=stage.state,
        seconds=seconds,
        started_at=stage.started_at,
        finished_at=stage.finished_at,
        spec=stage.spec,
        result=stage.result,
    )


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None
