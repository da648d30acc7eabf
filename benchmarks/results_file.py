"""One format for every benchmark's result, from which the README's numbers come."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Metric:
    """One figure. `ratio` is value / reference; `holds` says whether `goal` is met; `low` and `high` bound 95 %."""

    metric: str
    value: float | None
    unit: str = ""
    reference: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    goal: str | None = None
    holds: bool | None = None


def write_results(name: str, command: str, metrics: Sequence[Metric]) -> Path:
    """Write `benchmarks/results/NAME.json` with the command that printed it, the commit and the machine."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    record: dict[str, Any] = {
        "name": name,
        "command": command,
        "commit": _commit(),
        "machine": machine(),
        "metrics": [asdict(metric) for metric in metrics],
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def machine() -> dict[str, Any]:
    """What the figures were measured on, without a name or address."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cores": os.cpu_count(), "memory_gib": round(memory, 1), "python": platform.python_version()}


def _commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"
