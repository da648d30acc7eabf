"""What both embedded databases have in common: a home, a remembered port, a process of their own when used alone."""

import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from dreamgym.embedded import log_files
from dreamgym.embedded.environment import base_environment
from dreamgym.embedded.errors import DiskFullError, ServerFailedError, ServiceStartError
from dreamgym.embedded.ports import choose_port
from dreamgym.embedded.process import ChildProcess, Launch, describe_exit
from dreamgym.embedded.records import read_record, write_record
from dreamgym.embedded.service_spec import ServiceSpec
from dreamgym.embedded.service_user import data_home, forget_home, make_state_dir, service_user

_START_DEADLINE_S = 60.0
_STOP_GRACE_S = 30.0
_ATTEMPTS = 4
_POLL_S = 0.05


class EmbeddedServer(ABC):
    """A database server with its data below a state folder, on loopback only.

    Alone: `start()` and `stop()`; the server ends with the process that started it. Under a supervisor: `prepare()`,
    then hand it `spec()`.
    """

    name: str
    needed_bytes: int
    stop_signal: signal.Signals = signal.SIGTERM

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = make_state_dir(state_dir)
        self.user = service_user()
        self._process: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def home(self) -> Path:
        """The folder of this server's files; made at the first use."""
        return data_home(self.state_dir, self.name, self.user)

    @property
    def port(self) -> int:
        """The port of the last `prepare`, 0 before the first."""
        return int(read_record(self._record_path).get("port", 0))

    @property
    def log_path(self) -> Path:
        return self.state_dir / "logs" / f"{self.name}.log"

    def start(self) -> None:
        """Start the server (a running one is kept) and return when it answers. Data of an earlier run is kept."""
        if self.running():
            return
        log_files.rotate(self.log_path)
        for attempt in range(1, _ATTEMPTS + 1):
            self.prepare()
            spec = self.spec()
            environment = {**base_environment(), **spec.environment}
            launch = Launch(spec.command, environment, self.log_path, spec.user, spec.folder, spec.stop_signal)
            self._process = ChildProcess.start(launch)
            problem = self._await_ready(self._process)
            if problem is None:
                return
            output = log_files.tail(self.log_path, since=self._process.log_offset)
            self._process.stop(_STOP_GRACE_S)
            self._process = None
            self._raise_if_full(output)
            # Another program can take the port between our choice and the server's bind, and backends of a killed
            # server keep its shared memory for a moment: both pass with another try.
            if attempt == _ATTEMPTS or not self._passes(output):
                raise ServerFailedError(self.name, problem, output, f"Read {self.log_path}.")
            time.sleep(0.2 * attempt)

    def stop(self) -> None:
        """Stop the server in an orderly way, whoever started it. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.stop(_STOP_GRACE_S)
            self._process = None
            return
        if (pid := self.pid()) is None:
            return
        process = psutil.Process(pid)
        try:
            process.send_signal(self.stop_signal)
            process.wait(_STOP_GRACE_S)
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            raise ServerFailedError(self.name, f"does not stop (pid {pid})", "", f"Read {self.log_path}.") from None

    def running(self) -> bool:
        """Whether the server's process lives and answers."""
        return self.pid() is not None and self.ready()

    def wipe(self) -> None:
        """Stop the server and delete its data for good."""
        self.stop()
        forget_home(self.state_dir, self.name)

    @abstractmethod
    def prepare(self) -> None:
        """Make everything that a start needs: data folder, secrets, configuration, port. May be called again."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command that runs the prepared server in the foreground."""

    @abstractmethod
    def spec(self) -> ServiceSpec:
        """The prepared server as a supervised service."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether the server answers a client that has the password."""

    @abstractmethod
    def pid(self) -> int | None:
        """The pid of the server that runs on this data, whoever started it."""

    @abstractmethod
    def _passes(self, output: str) -> bool:
        """Whether a failed start with this output may succeed at the next try."""

    @property
    def _record_path(self) -> Path:
        return self.state_dir / f"{self.name}.json"

    def _remember_port(self) -> int:
        port = choose_port(self.port or None)
        write_record(self._record_path, {**read_record(self._record_path), "port": port})
        return port

    def _require_space(self, home: Path) -> None:
        free = shutil.disk_usage(home).free
        if free < self.needed_bytes:
            raise DiskFullError(
                home, f"{self.name} needs {self.needed_bytes >> 20} MiB to start, {free >> 20} MiB are free."
            )

    def raise_if_full(self, error: ServiceStartError) -> None:
        """Name the cause, when a supervised start of this server failed for want of space."""
        if error.service == self.name:
            self._raise_if_full(log_files.tail(self.log_path))

    def _raise_if_full(self, output: str) -> None:
        if full := [line for line in output.splitlines() if "No space left on device" in line]:
            raise DiskFullError(self.home, full[-1])

    def _await_ready(self, process: ChildProcess) -> str | None:
        deadline = time.monotonic() + _START_DEADLINE_S
        while time.monotonic() < deadline:
            if (code := process.poll()) is not None:
                return f"{describe_exit(code)} before it was ready"
            if self.ready():
                return None
            time.sleep(_POLL_S)
        return f"did not answer within {_START_DEADLINE_S:g} s"
