"""What is known of a running job: its stages, how far each is, its newest metrics, its last events."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dreamgym.cli.report import stage_title
from dreamgym.client import Event
from dreamgym.client.values import Job, StageView
from dreamgym.core.job_states import JobState, StageState

_LAST_EVENTS = 6
_SHOWN_METRICS = (
    *("loss", "dream_success", "real_success", "reward", "kl", "entropy", "invalid_rate"),
    *("dream_episodes", "real_episodes", "state_exact"),
)
_QUIET = frozenset({"metric", "end", "job.created", "dispatch.sent", "model.published"})
"""Events that are no news for people: points of curves, and what another line says already."""
_MEASURED = ("state_exact", "rollout_consistency", "invalid_recall")
_ITERATION = ("success", "reward", "kl", "entropy", "invalid_rate", "groups_used", "groups_zero_variance")


@dataclass
class Progress:
    """Grows by events and by looking at the job; knows nothing of how it is shown."""

    job: Job
    metrics: dict[int, dict[str, tuple[int, float]]] = field(default_factory=dict)
    """Newest (step, value) by stage and name."""
    last_events: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_EVENTS))

    def look(self, job: Job) -> None:
        """Take in the job as the gateway sees it now."""
        self.job = job
        for point in job.newest_metrics:
            self.take_metric(point.to_json())

    def take_metric(self, point: Mapping[str, Any]) -> None:
        """Take in one point of a curve; an older step never replaces a newer one."""
        try:
            stage, name, step, value = (
                int(point["stage"]),
                str(point["name"]),
                int(point["step"]),
                float(point["value"]),
            )
        except (KeyError, TypeError, ValueError):
            return
        known = self.metrics.setdefault(stage, {})
        if name not in known or known[name][0] <= step:
            known[name] = (step, value)

    def take_event(self, event: Event) -> str | None:
        """Take in an event; return its line for people, or None if it is only a measurement."""
        if event.type == "metric":
            self.take_metric(event.data)
            return None
        if event.type in _QUIET:
            return None
        line = self.describe(event)
        if self.last_events and self.last_events[-1] == line:
            return None
        self.last_events.append(line)
        return line

    def describe(self, event: Event) -> str:
        """An event in words."""
        data = event.data
        stage = data.get("stage")
        name = self.name(stage) if isinstance(stage, int) else ""
        if event.type == "job.state":
            reason = f": {data['reason']}" if data.get("reason") else ""
            return f"job {data.get('to') or data.get('state')}{reason}"
        if event.type == "stage.started":
            return f"{name} started"
        if event.type == "stage.finished":
            return f"{name} {data.get('state', 'finished')}"
        if event.type == "iteration.finished":
            measured = [f"{key.replace('_', ' ')} {data[key]:.3g}" for key in _ITERATION if _is_number(data.get(key))]
            return f"{name}: iteration {data.get('iteration')}  {'  '.join(measured)}"
        if event.type == "model.registered":
            return f"{data.get('role', '')} model {data.get('version', '')} is ready"
        if event.type == "model.measured":
            shares = [f"{name.replace('_', ' ')} {data[name]:.0%}" for name in _MEASURED if _is_number(data.get(name))]
            return f"experience model {data.get('version', '')} measured: {', '.join(shares)}"
        words = data.get("message") or data.get("text") or data.get("note")
        rest = words or ", ".join(
            f"{key} {value}" for key, value in data.items() if key != "stage" and _is_short(value)
        )
        kind = "" if event.type == "stage.note" and words else event.type
        return ": ".join(part for part in (name, kind, rest) if part)

    def name(self, index: int) -> str:
        """A stage's number and title."""
        for stage in self.job.stages:
            if stage.index == index:
                return f"{index + 1}/{len(self.job.stages)} {stage_title(stage.kind, stage.spec)}"
        return f"stage {index + 1}"

    def fraction(self, stage: StageView) -> float | None:
        """How much of a stage is done, in [0, 1]; None while that is not known."""
        if stage.state in (StageState.SUCCEEDED, StageState.SKIPPED):
            return 1.0
        if stage.state is StageState.PENDING:
            return 0.0
        known = self.metrics.get(stage.index, {})
        if "progress" in known:
            return min(1.0, max(0.0, known["progress"][1]))
        if stage.kind == "evaluate":
            total = stage.spec.get("episodes")
            worlds = 2 if stage.spec.get("where", "both") == "both" else 1
            played = sum(known[name][1] for name in ("dream_episodes", "real_episodes") if name in known)
            return min(1.0, played / (total * worlds)) if isinstance(total, int) and total else None
        return None

    def measurements(self, stage: StageView) -> str:
        """A stage's newest metrics, those that people ask for first."""
        known = self.metrics.get(stage.index, {})
        names = [name for name in _SHOWN_METRICS if name in known]
        return "  ".join(f"{name.replace('_', ' ')} {known[name][1]:.3g}" for name in names[:6])

    @property
    def is_still(self) -> bool:
        """Whether the job has ended or is paused."""
        return self.job.state.is_terminal or self.job.state is JobState.PAUSED


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) < 80)
