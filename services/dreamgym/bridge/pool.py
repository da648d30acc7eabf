"""The adapter processes of one bridge: as many episodes at a time as there are places, first come, first served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from dreamgym.bridge import metrics
from dreamgym.bridge.adapters.protocol import AdapterInfo
from dreamgym.bridge.adapters.registry import adapter_names
from dreamgym.bridge.settings import BridgeSettings
from dreamgym.bridge.worker_process import WorkerProcess
from dreamgym.core.errors import AdapterMissingError, CapacityError, UnavailableError

log = logging.getLogger(__name__)


class WorkerPool:
    """Lends adapter processes. An idle one of the same adapter is reused; worn, broken or foreign ones are replaced."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._places = asyncio.Semaphore(settings.bridge_pool_size)
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._wanted = 0
        self._infos: dict[str, AdapterInfo] = {}
        self._describing = asyncio.Lock()
        self._closed = False

    @property
    def capacity_left(self) -> int:
        """Episodes that could start now without waiting."""
        return max(0, self._settings.bridge_pool_size - self._wanted)

    @contextlib.asynccontextmanager
    async def lend(self, adapter: str) -> AsyncIterator[WorkerProcess]:
        """An adapter process for one episode.

        Raises CapacityError when none gets free in time, or the error of a failed start.
        """
        self._wanted += 1
        try:
            await self._wait_for_place(adapter)
            try:
                worker = await self._take(adapter)
                try:
                    yield worker
                finally:
                    await asyncio.shield(self._give_back(worker))
            finally:
                self._places.release()
        finally:
            self._wanted -= 1

    async def info(self, adapter: str) -> AdapterInfo:
        """The adapter's description; at the first call from a process that lives for this only and takes no place."""
        async with self._describing:
            if adapter not in self._infos:
                worker = await self._start(adapter, "describe")
                if not self._closed and len(self._idle) + self._wanted < self._settings.bridge_pool_size:
                    self._idle.append(worker)
                else:
                    await worker.close()
        return self._infos[adapter]

    async def close(self) -> None:
        """End all processes; episodes that still run fail."""
        self._closed = True
        workers = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)

    async def _wait_for_place(self, adapter: str) -> None:
        try:
            async with asyncio.timeout(self._settings.bridge_capacity_wait_s):
                await self._places.acquire()
        except TimeoutError:
            metrics.REFUSED.labels("capacity").inc()
            raise CapacityError(
                f"All {self._settings.bridge_pool_size} adapter processes stayed busy for "
                f"{self._settings.bridge_capacity_wait_s:g} s; no {adapter} episode was started.",
                remedy="Play fewer real episodes at a time, or raise DREAMGYM_BRIDGE_POOL_SIZE.",
            ) from None

    async def _take(self, adapter: str) -> WorkerProcess:
        if self._closed:
            raise UnavailableError("The bridge is shutting down.", remedy="Play the episode again later.")
        for worker in [candidate for candidate in self._idle if not candidate.alive]:
            self._idle.remove(worker)
            await worker.kill()
        fitting = next((worker for worker in self._idle if worker.adapter == adapter), None)
        if fitting is not None:
            self._idle.remove(fitting)
        elif self._idle and len(self._idle) + len(self._busy) >= self._settings.bridge_pool_size:
            await self._idle.pop(0).close()
        worker = fitting or await self._start(adapter, "episode")
        self._busy.add(worker)
        metrics.BUSY.set(len(self._busy))
        return worker

    async def _give_back(self, worker: WorkerProcess) -> None:
        self._busy.discard(worker)
        metrics.BUSY.set(len(self._busy))
        worker.episodes += 1
        worn = worker.episodes >= self._settings.bridge_episodes_per_worker
        if self._closed or worn or not worker.alive:
            await worker.close()
        else:
            self._idle.append(worker)

    async def _start(self, adapter: str, purpose: str) -> WorkerProcess:
        factory = self._settings.bridge_adapters.get(adapter, "")
        known = {*adapter_names(), *self._settings.bridge_adapters}
        if adapter not in known:
            raise AdapterMissingError(
                f"There is no adapter named {adapter!r}.", remedy=f"Use one of: {', '.join(sorted(known))}."
            )
        worker = await WorkerProcess.start(adapter, factory, self._settings.bridge_start_deadline_s)
        self._infos[adapter] = worker.info
        metrics.WORKERS_STARTED.labels(adapter).inc()
        log.info("adapter process started", extra={"adapter": adapter, "worker_pid": worker.pid, "for": purpose})
        return worker
