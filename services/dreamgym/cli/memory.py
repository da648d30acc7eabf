"""Peak memory of a process and all that it started."""

from __future__ import annotations

import contextlib
import threading
from typing import Self

import psutil


class PeakMemory:
    """Samples the process tree from a thread; `peak_bytes` is the largest sum seen.

    Counts proportional memory (PSS) where the system tells it, so that shared pages count once; else resident memory,
    which counts them for each process.
    """

    def __init__(self, pid: int | None = None, *, interval_s: float = 2.0) -> None:
        self.peak_bytes = 0
        self._root = psutil.Process(pid)
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=10)

    def sample(self) -> int:
        """Bytes that the tree uses now."""
        total = 0
        with contextlib.suppress(psutil.Error):
            for process in [self._root, *self._root.children(recursive=True)]:
                total += _bytes_of(process)
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    def _watch(self) -> None:
        while True:
            self.sample()
            if self._stopped.wait(self._interval_s):
                return


def _bytes_of(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        try:
            full = process.memory_full_info()
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
        return int(getattr(full, "pss", 0) or full.rss)
    return 0
