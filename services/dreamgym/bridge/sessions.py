"""Sessions are leases: the living ones are renewed, those of a dead bridge are closed after their time to live."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from dreamgym.bridge.ledger import Ledger
from dreamgym.core.errors import UnavailableError

log = logging.getLogger(__name__)


class SessionKeeper:
    """Renews the sessions of this bridge and closes dead ones, of any bridge."""

    def __init__(self, ledger: Ledger, ttl_s: float) -> None:
        self._ledger = ledger
        self._ttl_s = ttl_s
        self._live: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, session_id: int) -> None:
        self._live.add(session_id)

    def remove(self, session_id: int) -> None:
        self._live.discard(session_id)

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep(self) -> None:
        while True:
            try:
                if self._live:
                    await self._ledger.renew_sessions(sorted(self._live))
                if closed := await self._ledger.close_dead_sessions(self._ttl_s):
                    log.warning("closed sessions of a bridge that died", extra={"sessions": closed})
            except UnavailableError as error:
                log.warning("sessions not renewed", extra={"cause": str(error)})
            except Exception:  # a fault of one round must not end the keeping of leases
                log.exception("sessions not renewed")
            await asyncio.sleep(self._ttl_s / 3)
