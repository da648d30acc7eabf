"""Find and end what a platform has left running: by its records, then by the mark in its environment."""

import contextlib
import os
import signal
from pathlib import Path

import psutil

from dreamgym.embedded.records import read_record

MARK = "DREAMGYM_SUPERVISED_STATE"


def mark(state_dir: Path) -> dict[str, str]:
    """The environment variable that every supervised process and its descendants carry."""
    return {MARK: str(state_dir)}


def recorded(state_dir: Path) -> list[tuple[psutil.Process, signal.Signals]]:
    """Living services of STATE/run with their stop signals, the last started first; a reused pid is not taken."""
    found = []
    for path in (state_dir / "run").glob("*.json"):
        record = read_record(path)
        try:
            process = psutil.Process(int(record["pid"]))
            if abs(process.create_time() - float(record["create_time"])) < 0.05 and _alive(process):
                found.append((process, signal.Signals(int(record.get("stop_signal", signal.SIGTERM)))))
        except (KeyError, TypeError, ValueError, psutil.Error):
            continue
    return sorted(found, key=lambda pair: pair[0].create_time(), reverse=True)


def marked(state_dir: Path, service: str | None = None) -> list[psutil.Process]:
    """Living processes that carry the mark of this state folder (and of `service`, when given), except ourselves."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or not _alive(process):
                continue
            environment = process.environ()
            if environment.get(MARK) == str(state_dir) and service in (None, environment.get("DREAMGYM_SERVICE")):
                found.append(process)
    return found


def end_all(state_dir: Path, grace_s: float = 8.0) -> list[int]:
    """End everything that still runs for this state folder within about `grace_s`; returns the pids.

    All are asked at once: the kernel has already asked them when their supervisor died.
    """
    services = recorded(state_dir)
    for process, stop_signal in services:
        with contextlib.suppress(psutil.Error):
            process.send_signal(stop_signal)
    psutil.wait_procs([process for process, _ in services], timeout=grace_s)
    for process, _ in services:
        # The group too: its number is not given away while a member lives.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    stragglers = marked(state_dir)
    for process in stragglers:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return [process.pid for process, _ in services] + [process.pid for process in stragglers]


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
