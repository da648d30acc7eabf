"""One platform per state folder: an advisory lock that ends with the processes that hold it."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

import psutil

from dreamgym.embedded.errors import StateLockedError

_POLL_S = 0.1
_MOMENT_S = 0.8


class StateLock:
    """The lock of a state folder. Its descriptor may be inherited by the guard, which then holds it too."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "lock"
        self._state_dir = state_dir
        self._descriptor: int | None = None

    def acquire(self, patience_s: float = 20.0) -> None:
        """Take the lock, or raise StateLockedError.

        A live owner is refused within a second (a killed one needs a moment to be gone); a dead one may have left a
        guard that is still cleaning up, which is waited for up to `patience_s`.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        begin = time.monotonic()
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                owner = self._owner(descriptor)
                waited_s = time.monotonic() - begin
                if waited_s > patience_s or (waited_s > _MOMENT_S and owner is not None and _lives(owner)):
                    raise StateLockedError(self._state_dir, owner)
                time.sleep(_POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back, for every holder of the descriptor."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    def fileno(self) -> int:
        """The descriptor, for handing to the guard."""
        if self._descriptor is None:
            raise ValueError("the lock is not held")
        return self._descriptor

    @staticmethod
    def _owner(descriptor: int) -> int | None:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else None


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
