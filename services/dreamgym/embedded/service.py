"""One supervised service's life: pending, starting, healthy, waiting to be restarted, given up, stopped."""

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from dreamgym.embedded import log_files, orphans
from dreamgym.embedded.errors import CrashLoopError, EmbeddedError, ServiceStartError
from dreamgym.embedded.health import probe
from dreamgym.embedded.process import ChildProcess, Launch, describe_exit
from dreamgym.embedded.records import write_record
from dreamgym.embedded.service_spec import ServiceSpec


class ServiceState(StrEnum):
    """Where a service is in its life."""

    PENDING = "pending"
    """waits for what it depends on"""
    STARTING = "starting"
    """runs, and is not healthy yet"""
    HEALTHY = "healthy"
    """has passed its health check since it was last started"""
    BACKING_OFF = "backing_off"
    """died, and will be restarted"""
    FAILED = "failed"
    """is given up"""
    STOPPED = "stopped"
    """was told to stop"""


@dataclass(frozen=True)
class ServiceStatus:
    """A snapshot. `restarts` counts since the platform's start; `detail` says why it is not healthy."""

    name: str
    state: ServiceState
    pid: int | None
    restarts: int
    detail: str = ""


class Service:
    """The state machine of one service; only the supervising thread calls its methods."""

    def __init__(
        self,
        spec: ServiceSpec,
        environment: Mapping[str, str],
        log_path: Path,
        state_dir: Path,
        announce: Callable[[ServiceStatus], None],
    ) -> None:
        self.spec = spec
        self.failure: EmbeddedError | None = None
        self.state = ServiceState.PENDING
        self._launch = Launch(spec.command, environment, log_path, spec.user, spec.folder, spec.stop_signal)
        self._state_dir = state_dir
        self._announce = announce
        self._process: ChildProcess | None = None
        self._restarts = 0
        self._deaths: deque[float] = deque(maxlen=spec.restart.limit)
        self._in_a_row = 0
        self._healthy_since = 0.0
        self._next_probe = 0.0
        self._misses = 0
        self._has_been_healthy = False
        self._due = 0.0
        self._detail = ""
        self.status = ServiceStatus(spec.name, self.state, None, 0)

    def advance(self, now: float, healthy: Collection[str]) -> None:
        """Take the next step, if there is one; `healthy` are the names of the healthy services."""
        due = self.state is ServiceState.PENDING or (self.state is ServiceState.BACKING_OFF and now >= self._due)
        if due and all(name in healthy for name in self.spec.depends_on):
            self._start(now)
        elif self.state in (ServiceState.STARTING, ServiceState.HEALTHY):
            self._watch(now)

    def signal(self, number: signal.Signals) -> None:
        """Signal the process, if there is one."""
        if self._process is not None:
            self._process.send(number)

    def stop(self) -> None:
        """End the process and everything that it started."""
        self._end_process()
        if self.state is not ServiceState.FAILED:
            self._enter(ServiceState.STOPPED)

    def restart(self) -> None:
        """Stop, forget past deaths and begin again."""
        self.stop()
        self.failure = None
        self._deaths.clear()
        self._in_a_row = 0
        self._restarts += 1
        self._enter(ServiceState.PENDING)

    def failed_to_start(self, detail: str) -> ServiceStartError:
        """The error for a missed deadline, with the end of the log."""
        return ServiceStartError(self.spec.name, detail, self._launch.log_path, self._tail())

    def _start(self, now: float) -> None:
        try:
            self._process = ChildProcess.start(self._launch)
        except (EmbeddedError, OSError) as error:
            self._give_up(error if isinstance(error, EmbeddedError) else self.failed_to_start(str(error)))
            return
        self._due = now + self.spec.start_deadline_s
        self._enter(ServiceState.STARTING)

    def _watch(self, now: float) -> None:
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            self._died(now, describe_exit(code))
        elif self.state is ServiceState.HEALTHY:
            if self._in_a_row and now - self._healthy_since > self.spec.restart.window_s:
                self._in_a_row = 0
            if now >= self._next_probe:
                self._check_liveness(now)
        elif (reason := probe(self.spec.health)) is None:
            self._healthy_since = now
            self._next_probe, self._misses = now + self.spec.liveness.interval_s, 0
            self._has_been_healthy = True
            self._enter(ServiceState.HEALTHY)
        elif now > self._due:
            late = f"not healthy within {self.spec.start_deadline_s:g} s; the last probe said: {reason}"
            self._end_process()
            if self._has_been_healthy:
                self._died(now, late)
            else:
                self._give_up(self.failed_to_start(late))

    def _check_liveness(self, now: float) -> None:
        """A service that lives but does not answer is worse than one that died: nobody would restart it."""
        liveness = self.spec.liveness
        self._next_probe = now + liveness.interval_s
        reason = probe(self.spec.health)
        self._misses = 0 if reason is None else self._misses + 1
        if self._misses >= liveness.misses:
            self._died(now, f"hung: {self._misses} health checks in a row had no answer, the last one: {reason}")

    def _died(self, now: float, how: str) -> None:
        self._end_process()
        self._deaths.append(now)
        self._in_a_row += 1
        policy = self.spec.restart
        if len(self._deaths) == policy.limit and now - self._deaths[0] <= policy.window_s:
            detail = f"died {policy.limit} times within {policy.window_s:g} s, at last it {how}"
            self._give_up(CrashLoopError(self.spec.name, detail, self._launch.log_path, self._tail()))
            return
        self._restarts += 1
        self._due = now + policy.delay_s(self._in_a_row)
        self._enter(ServiceState.BACKING_OFF, how)

    def _give_up(self, error: EmbeddedError) -> None:
        self.failure = error
        self._enter(ServiceState.FAILED, str(error))

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.stop(self.spec.stop_grace_s)
            self._process = None
        # What it started may have left its process group; the mark in the environment finds it all the same.
        for process in orphans.marked(self._state_dir, self.spec.name):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _tail(self) -> str:
        return log_files.tail(self._launch.log_path)

    def _enter(self, state: ServiceState, detail: str = "") -> None:
        self.state = state
        process = self._process
        self.status = ServiceStatus(self.spec.name, state, process.pid if process else None, self._restarts, detail)
        # A full disk must not stop the supervisor; the record is for others.
        with contextlib.suppress(OSError):
            write_record(
                self._state_dir / "run" / f"{self.spec.name}.json",
                {
                    "name": self.spec.name,
                    "state": state.value,
                    "pid": self.status.pid,
                    "create_time": process.started_at if process else None,
                    "stop_signal": int(self.spec.stop_signal),
                    "restarts": self._restarts,
                    "since": time.time(),
                    "log": str(self._launch.log_path),
                    "detail": detail,
                },
            )
        self._announce(self.status)
