"""How far a job is, from its events and what the gateway says."""

import subprocess
import sys
from types import SimpleNamespace

from dreamgym.cli.memory import PeakMemory
from dreamgym.cli.progress import Progress
from dreamgym.client import Event
from dreamgym.client.values import Job


def running(make: SimpleNamespace, index: int) -> Progress:
    job = make.job()
    for stage in job["stages"][index:]:
        stage |= {"state": "running" if stage["index"] == index else "pending", "result": None}
    job["stages"][index]["spec"]["episodes"] = 60
    return Progress(Job.model_validate({**job, "state": "running"}))


def metric(stage: int, name: str, step: int, value: float | None) -> Event:
    return Event("metric", {"stage": stage, "name": name, "step": step, "value": value})


def test_a_stage_is_as_far_as_its_progress_metric_says(make: SimpleNamespace) -> None:
    progress = running(make, 4)
    assert progress.fraction(progress.job.stages[4]) is None
    progress.take_event(metric(4, "progress", 1001, 0.25))
    assert progress.fraction(progress.job.stages[4]) == 0.25
    assert progress.fraction(progress.job.stages[3]) == 1.0
    assert progress.fraction(progress.job.stages[5]) == 0.0


def test_an_evaluation_is_as_far_as_its_episodes_in_both_worlds(make: SimpleNamespace) -> None:
    progress = running(make, 5)
    progress.take_event(metric(5, "dream_episodes", 60, 60))
    progress.take_event(metric(5, "real_episodes", 30, 30))
    assert progress.fraction(progress.job.stages[5]) == 0.75


def test_an_older_point_never_replaces_a_newer_one(make: SimpleNamespace) -> None:
    progress = running(make, 4)
    progress.take_event(metric(4, "reward", 7, 0.7))
    progress.take_event(metric(4, "reward", 6, 0.6))
    progress.take_event(metric(4, "reward", 8, None))
    assert progress.measurements(progress.job.stages[4]) == "reward 0.7"


def test_events_become_lines_and_measurements_do_not(make: SimpleNamespace) -> None:
    progress = running(make, 4)
    assert progress.take_event(metric(4, "kl", 1, 0.1)) is None
    started = Event("stage.started", {"stage": 4})
    assert progress.take_event(started) == "5/8 reinforcement learning in the dream started"
    assert progress.take_event(started) is None  # said by the gateway and by the trainer
    finished = Event("iteration.finished", {"stage": 4, "iteration": 3, "success": 0.5, "reward": 0.41, "seconds": 9})
    line = "5/8 reinforcement learning in the dream: iteration 3  success 0.5  reward 0.41"
    assert progress.take_event(finished) == line
    assert progress.take_event(Event("job.state", {"to": "queued", "reason": "The worker stopped."})) == (
        "job queued: The worker stopped."
    )


def test_peak_memory_counts_the_children_too() -> None:
    hold = "import sys; block = bytearray(b'x' * 80_000_000); print('ready', flush=True); sys.stdin.read()"
    with PeakMemory(interval_s=60) as memory:
        alone = memory.sample()
        child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        assert memory.sample() > alone + 70_000_000
        child.communicate()
    assert memory.peak_bytes > alone + 70_000_000
