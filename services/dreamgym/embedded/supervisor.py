"""The process supervisor: starts services in order of need, restarts those that die, leaves nothing behind.

All state belongs to one thread; public methods send it a request and wait. A second line of defence, the guard
process, ends the services if this process is killed.
"""

import contextlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from dreamgym.embedded import log_files, orphans
from dreamgym.embedded.environment import base_environment
from dreamgym.embedded.errors import EmbeddedError, StopRequestedError, UnknownServiceError
from dreamgym.embedded.lock import StateLock
from dreamgym.embedded.service import Service, ServiceState, ServiceStatus
from dreamgym.embedded.service_spec import ServiceSpec, check_specs
from dreamgym.embedded.service_user import make_state_dir

T = TypeVar("T")
_TICK_S = 0.1
_CALM_TICK_S = 0.25
_LOG_CHECK_S = 30.0
_STOP_LATENCY_S = 0.25


class Supervisor:
    """Keeps the services of one state folder running.

    STATE/logs/NAME.log takes the output, STATE/run/NAME.json says what runs, STATE/lock keeps a second one out.
    """

    def __init__(self, state_dir: Path, on_change: Callable[[ServiceStatus], None] | None = None) -> None:
        """`on_change` is called from the supervising thread at every change of a service's state."""
        self.state_dir = make_state_dir(state_dir)
        self._on_change = on_change
        self._lock = StateLock(self.state_dir)
        self._services: dict[str, Service] = {}
        self._requests: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._stop_requested = False
        self._calm = False
        self._fault: Exception | None = None
        self._changed = threading.Condition()
        self._next_log_check = 0.0

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether the state folder is ours."""
        return self._thread is not None

    def open(self) -> None:
        """Take the state folder (StateLockedError if another has it), end what a killed run left, begin supervising."""
        self._lock.acquire()
        try:
            orphans.end_all(self.state_dir)
            for stale in (self.state_dir / "run").glob("*.json"):
                stale.unlink()
            self._start_guard()
        except BaseException:
            self._lock.release()
            raise
        self._ending = False
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._thread.start()

    def start(self, specs: Sequence[ServiceSpec]) -> None:
        """Start `specs` and return when all are healthy.

        Raises ServiceStartError when one misses its deadline and CrashLoopError when one keeps dying; what was started
        stays under supervision until `close`.
        """
        check_specs(specs, self._services)
        for spec in specs:
            log_files.rotate(self._log_path(spec.name))
        self._ask(lambda: self._add(specs))
        self._await_healthy([spec.name for spec in specs])

    def restart(self, name: str) -> None:
        """Stop one service in an orderly way, start it again and return when it is healthy."""
        service = self._service(name)
        self._ask(service.restart)
        self._await_healthy([name])

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one service's process, as a fault; it is restarted as after any other death."""
        service = self._service(name)
        self._ask(lambda: service.signal(number))

    def pid(self, name: str) -> int | None:
        """The pid of a service, None while it is not running."""
        return self._service(name).status.pid

    def status(self) -> dict[str, ServiceStatus]:
        """Every service's state as of now."""
        return {name: service.status for name, service in self._services.items()}

    def wait_healthy(self, name: str, *, other_than_pid: int | None = None, timeout_s: float = 60.0) -> int:
        """Wait until a service is healthy (as another process than `other_than_pid`) and return its pid."""
        service = self._service(name)

        def ready() -> bool:
            self._raise_failure()
            status = service.status
            return status.state is ServiceState.HEALTHY and status.pid != other_than_pid

        with self._changed:
            if not self._wait_for(ready, timeout_s):
                raise service.failed_to_start(f"not healthy again within {timeout_s:g} s")
        pid = service.status.pid
        assert pid is not None
        return pid

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until a service is given up, and raise its CrashLoopError; return after `timeout_s`."""

        def failed() -> bool:
            self._raise_failure()
            return False

        with self._changed:
            self._wait_for(failed, timeout_s)

    def request_stop(self) -> None:
        """End every wait with StopRequestedError within a moment. Takes no lock: for signal handlers."""
        self._stop_requested = True

    def close(self) -> None:
        """Stop every service, the last started first, and give the state folder back. Safe to call twice."""
        if self._thread is None:
            return
        self._ask(self._stop_all)
        self._ending = True
        self._thread.join()
        self._thread = None
        self._dismiss_guard()
        self._services.clear()
        self._stop_requested = False
        self._lock.release()

    # The supervising thread

    def _supervise(self) -> None:
        while not self._ending:
            try:
                request, answer = self._requests.get(timeout=_CALM_TICK_S if self._calm else _TICK_S)
            except queue.Empty:
                self._tick_or_report()
                continue
            try:
                answer.set_result(request())
            except BaseException as error:
                answer.set_exception(error)

    def _tick_or_report(self) -> None:
        try:
            self._tick()
        except Exception as error:  # a fault of ours must reach the callers that wait, not end this thread silently
            with self._changed:
                self._fault = error
                self._changed.notify_all()

    def _tick(self) -> None:
        now = time.monotonic()
        healthy = {name for name, service in self._services.items() if service.state is ServiceState.HEALTHY}
        for service in list(self._services.values()):
            service.advance(now, healthy)
        self._calm = len(healthy) == len(self._services)
        if self._guard is not None and self._guard.poll() is not None:
            self._start_guard()
        if now >= self._next_log_check:
            self._next_log_check = now + _LOG_CHECK_S
            for name in self._services:
                log_files.bound(self._log_path(name))

    def _add(self, specs: Sequence[ServiceSpec]) -> None:
        self._calm = False
        for spec in specs:
            environment = {
                **base_environment(),
                **spec.environment,
                **orphans.mark(self.state_dir),
                "DREAMGYM_SERVICE": spec.name,
            }
            self._services[spec.name] = Service(
                spec, environment, self._log_path(spec.name), self.state_dir, self._announce
            )

    def _stop_all(self) -> None:
        for service in reversed(self._services.values()):
            service.stop()
        for process in orphans.marked(self.state_dir):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _announce(self, status: ServiceStatus) -> None:
        with self._changed:
            self._changed.notify_all()
        if self._on_change is not None:
            self._on_change(status)

    # The callers' threads

    def _ask(self, request: Callable[[], T]) -> T:
        if self._thread is None:
            raise EmbeddedError("The supervisor is not open.", "Call open() or use it as a context manager.")
        if threading.current_thread() is self._thread:
            return request()
        answer: Future[T] = Future()
        self._requests.put((request, answer))
        return answer.result()

    def _await_healthy(self, names: Sequence[str]) -> None:
        def ready() -> bool:
            self._raise_failure()
            return all(self._services[name].state is ServiceState.HEALTHY for name in names)

        with self._changed:
            self._wait_for(ready, None)

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait with `_changed` held; looks up often enough for `request_stop`, which cannot notify."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            if self._stop_requested:
                raise StopRequestedError
            left_s = _STOP_LATENCY_S if deadline is None else min(deadline - time.monotonic(), _STOP_LATENCY_S)
            if left_s <= 0:
                return False
            self._changed.wait(left_s)
        return True

    def _raise_failure(self) -> None:
        if self._fault is not None:
            raise self._fault
        for service in self._services.values():
            if service.failure is not None:
                raise service.failure

    def _service(self, name: str) -> Service:
        if name not in self._services:
            raise UnknownServiceError(name, list(self._services))
        return self._services[name]

    def _log_path(self, name: str) -> Path:
        return self.state_dir / "logs" / f"{name}.log"

    def _start_guard(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "dreamgym.embedded.guard", str(self.state_dir)],
            env=base_environment(),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._lock.fileno()],
            start_new_session=True,
        )

    def _dismiss_guard(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.write(b".")
                self._guard.stdin.close()
            self._guard.wait()
        self._guard = None
