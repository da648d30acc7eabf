"""Figures of a demo run: `python -m benchmarks.demo runs/demo/report.json`, after `make demo`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.results_file import Metric, write_results

TIME_LIMIT_S = 15 * 60
MEMORY_LIMIT_GIB = 6


def metrics(report: dict[str, Any]) -> list[Metric]:
    found: list[Metric] = []
    for stage in report["stages"]:
        place = f"{stage['index']}"
        for world in ("real", "dream"):
            success = (stage.get(world) or {}).get("success")
            if success:
                found.append(
                    Metric(
                        f"{world}_success/{place} {stage['title'].removeprefix('measured: ')}",
                        success["value"],
                        "share",
                        low=success["low"],
                        high=success["high"],
                        n=success["n"],
                    )
                )
        if stage.get("seconds") is not None:
            found.append(Metric(f"seconds/{place} {stage['title']}", round(stage["seconds"], 1), "s"))
        if stage.get("real_transitions"):
            found.append(Metric(f"real_transitions/{place}", stage["real_transitions"], "transitions"))
        change = stage.get("to_start")
        if isinstance(change, dict) and "value" in change:
            found.append(
                Metric(
                    f"real_change_to_start/{place}",
                    change["value"],
                    "share",
                    low=change.get("low"),
                    high=change.get("high"),
                    n=change.get("n"),
                )
            )
    fidelity = report.get("fidelity") or {}
    exact = fidelity.get("state_exact")
    if exact:
        found.append(
            Metric("fidelity_state_exact", exact["value"], "share", low=exact["low"], high=exact["high"], n=exact["n"])
        )
    run = report.get("run") or {}
    if run.get("seconds"):
        seconds = run["seconds"]
        found.append(Metric("whole_run", seconds, "s", goal=f"<= {TIME_LIMIT_S}", holds=seconds <= TIME_LIMIT_S))
    if run.get("peak_memory_bytes"):
        gib = run["peak_memory_bytes"] / 2**30
        found.append(Metric("peak_memory", gib, "GiB", goal=f"<= {MEMORY_LIMIT_GIB}", holds=gib <= MEMORY_LIMIT_GIB))
    return found


def fidelity_metrics(report: dict[str, Any]) -> list[Metric]:
    """How faithful the run's dream was to held-out real transitions."""
    found = report.get("fidelity") or {}
    metrics = [
        Metric(
            "success_f1", found.get("success_f1"), "F1", goal=">= 0.95", holds=(found.get("success_f1") or 0) >= 0.95
        )
    ]
    metrics += [
        Metric(name, found.get(name), unit)
        for name, unit in (("done_f1", "F1"), ("invalid_recall", "share"), ("state_similarity", "share"))
    ]
    for name in ("state_exact", "rollout_consistency"):
        share = found.get(name) or {}
        metrics.append(
            Metric(name, share.get("value"), "share", low=share.get("low"), high=share.get("high"), n=share.get("n"))
        )
    return metrics


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo/report.json")
    report, command = json.loads(path.read_text()), "make demo && make bench-demo"
    print(write_results("demo", command, metrics(report)))
    print(write_results("fidelity", command, fidelity_metrics(report)))


if __name__ == "__main__":
    main()
