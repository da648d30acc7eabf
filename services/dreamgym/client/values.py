"""What the gateway answers, as typed values. Fields that a newer gateway adds are kept, not refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dreamgym.core.errors import BY_CODE, DreamGymError
from dreamgym.core.job_states import JobState, StageState


class Value(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    def to_json(self) -> dict[str, Any]:
        """Everything that the gateway sent."""
        return self.model_dump(mode="json")


class Environment(Value):
    id: str
    name: str
    description: str = ""
    action_format: str = ""
    adapter: str = ""
    """The bridge adapter that plays the real environment; empty where there is only the dream."""
    max_steps: int = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime | None = None


class Issue(Value):
    """One line of an upload that was not taken: where, why and what would fix it."""

    line: int | None = None
    reason: str = ""
    remedy: str = ""


class ImportReport(Value):
    """What became of an upload: how much was taken, and every line that was not (the first 1000 of them)."""

    accepted: int = 0
    """Tasks stored."""
    episodes_stored: int = 0
    transitions_stored: int = 0
    already_there: int = 0
    tasks_created: int = 0
    issue_count: int = 0
    issues: list[Issue] = Field(default_factory=list)


class StageView(Value):
    index: int = 0
    kind: str = ""
    state: StageState = StageState.PENDING
    spec: dict[str, Any] = Field(default_factory=dict)
    result: dict[str, Any] | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class JobFailure(Value):
    code: str = ""
    message: str = ""
    remedy: str = ""

    def as_error(self) -> DreamGymError:
        """The exception that ended the job."""
        return BY_CODE.get(self.code, DreamGymError)(self.message, remedy=self.remedy)


class Metric(Value):
    stage: int
    name: str
    step: int
    value: float | None = None
    """None where training measured something that is not a finite number."""


class EnvironmentName(Value):
    id: str
    name: str


class Job(Value):
    id: str
    kind: str = ""
    name: str = ""
    state: JobState
    environment: EnvironmentName | None = None
    attempt: int = 0
    spec: dict[str, Any] = Field(default_factory=dict)
    stages: list[StageView] = Field(default_factory=list)
    result: dict[str, Any] | None = None
    error: JobFailure | None = None
    newest_metrics: list[Metric] = Field(default_factory=list)
    """The newest point of each curve; listings leave it out."""
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Model(Value):
    id: str
    role: str
    version: str
    location: str = ""
    sha256: str = ""
    environment_id: str = ""
    job_id: str = ""
    manifest: dict[str, Any] = Field(default_factory=dict)
    fidelity: dict[str, Any] | None = None
    """Experience models: the newest measurement of how faithful the dream is."""
    created_at: datetime | None = None


class Key(Value):
    """An API key; `key`, the secret, is there only in the answer that makes it."""

    id: str
    name: str = ""
    scopes: list[str] = Field(default_factory=list)
    hint: str = ""
    key: str = ""
    created_at: datetime | None = None
    last_used_at: datetime | None = None
    expires_at: datetime | None = None


class Observation(Value):
    """What the dream or the real environment shows after the start or after an action."""

    step: int = 0
    state: str = ""
    reward: float = 0.0
    done: bool = False
    success: bool = False
    valid_action: bool = True
    reasoning: str = ""
    confidence: float | None = None
    admissible_actions: list[str] = Field(default_factory=list)
    termination: str | None = None
    retrieved: list[int] = Field(default_factory=list)
    """Ids of the stored transitions that grounded this step."""
    model_version: str = ""
    world_sheet: str = ""
    """The dream's hidden facts, sent with the first observation; empty in the real environment."""


class EpisodeStart(Observation):
    session: str
    task_id: str = ""
    instruction: str = ""
    action_format: str = ""
    max_steps: int = 0
