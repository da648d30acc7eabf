"""One child process: started in its own group, bound to our life, stopped without leaving anything of it behind."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dreamgym.embedded import spawn
from dreamgym.embedded.errors import DiskFullError, EmbeddedError
from dreamgym.embedded.service_user import ServiceUser

_POLL_S = 0.02
# The kernel sends the parent-death signal when the *thread* that forked ends, so every child is started from one
# thread that lives as long as this process.
_launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")


@dataclass(frozen=True)
class Launch:
    """How to start a child. `environment` is all that it sees; `log_path` takes its output, appended."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log_path: Path
    user: ServiceUser | None = None
    folder: Path = Path("/")
    stop_signal: signal.Signals = signal.SIGTERM


@dataclass
class ChildProcess:
    """A started child, which is not reaped before its whole process group is gone."""

    launch: Launch
    popen: "subprocess.Popen[bytes]"
    log_offset: int
    started_at: float
    exit_code: int | None = field(default=None)

    @classmethod
    def start(cls, launch: Launch) -> "ChildProcess":
        """Start `launch` from the launcher thread; DiskFullError when not even its log can be opened."""
        return _launcher.submit(cls._start, launch).result()

    @classmethod
    def _start(cls, launch: Launch) -> "ChildProcess":
        uid, gid = launch.user.owner if launch.user else (-1, -1)
        prelude = [os.getpid(), int(launch.stop_signal), uid, gid, launch.folder]
        command = [sys.executable, "-I", "-S", spawn.__file__, *map(str, prelude), "--", *launch.command]
        try:
            launch.log_path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(launch.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFullError(launch.log_path, str(error)) from error
            raise EmbeddedError(f"The log {launch.log_path} cannot be written: {error}.", "Check its owner.") from error
        with os.fdopen(descriptor, "ab") as log:
            popen = subprocess.Popen(
                command,
                env=dict(launch.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            return cls(launch, popen, os.fstat(log.fileno()).st_size, psutil.Process(popen.pid).create_time())

    @property
    def pid(self) -> int:
        return self.popen.pid

    def poll(self) -> int | None:
        """The exit code if the child has ended, after killing what it left in its group; else None."""
        if self.exit_code is None and self._has_ended():
            # Not reaped yet, so the group's number cannot belong to anyone else.
            self.kill()
            self.exit_code = self.popen.wait()
        return self.exit_code

    def wait(self, timeout_s: float) -> int | None:
        """As `poll`, waiting up to `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return code

    def send(self, number: signal.Signals) -> None:
        """Signal the child itself, not its group: it ends its own children in its own way."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the child's whole group."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def stop(self, grace_s: float) -> int:
        """Ask with the stop signal, wait `grace_s`, then kill the group. Returns the exit code."""
        self.send(self.launch.stop_signal)
        if (code := self.wait(grace_s)) is None:
            self.kill()
            code = self.wait(30)
        return -signal.SIGKILL if code is None else code

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True


def describe_exit(code: int) -> str:
    """An exit code in words: `exited with 3`, `was killed by SIGKILL`."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
