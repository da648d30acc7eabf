"""Recorded real episodes on their way to the replay store: spooled first, sent until stored, never lost silently."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import grpc

from dreamgym.bridge import metrics
from dreamgym.bridge.settings import BridgeSettings
from dreamgym.bridge.spool import Spool
from dreamgym.core.errors import DreamGymError, InvalidInputError
from dreamgym.v1 import replay_pb2 as pb
from dreamgym.v1.replay_pb2_grpc import ReplayStub
from dreamgym.wire.channel import open_channel
from dreamgym.wire.errors import error_from_rpc

log = logging.getLogger(__name__)


class Recorder:
    """Sends episodes one by one in the background. Storing twice is harmless: the store knows them by their id."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._spool = Spool(settings.bridge_spool)
        self._waiting: dict[str, tuple[pb.StoredEpisode, asyncio.Event]] = {}
        self._news = asyncio.Event()
        self._channel = open_channel(settings.replay_address, settings)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send, first what an earlier bridge left in the spool."""
        self._task = asyncio.create_task(self._run())

    async def submit(self, episode: pb.StoredEpisode) -> None:
        """Take charge of an episode. It is on disk when this returns, unless the disk refuses (the log tells)."""
        try:
            await asyncio.to_thread(self._spool.put, episode)
        except OSError as error:
            metrics.RECORDING_FAILURES.inc()
            log.error("episode not spooled, kept in memory", extra={"episode": episode.episode_id, "cause": str(error)})
        self._add(episode)

    async def wait_stored(self, episode_id: str, timeout_s: float) -> bool:
        """Whether the episode is settled (stored, or refused for good) within `timeout_s`; it stays in charge if not."""
        waiting = self._waiting.get(episode_id)
        if waiting is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await waiting[1].wait()
        except TimeoutError:
            log.warning("recorded episode waits in the spool", extra={"episode": episode_id})
            return False
        return True

    async def close(self) -> None:
        """Give what waits one more moment, then stop; the rest stays in the spool for the next start."""
        for episode_id in list(self._waiting):
            if not await self.wait_stored(episode_id, 2.0):
                break
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._channel.close(None)

    def _add(self, episode: pb.StoredEpisode) -> None:
        self._waiting[episode.episode_id] = (episode, asyncio.Event())
        metrics.SPOOLED.set(len(self._waiting))
        self._news.set()

    async def _run(self) -> None:
        try:
            for episode in await asyncio.to_thread(self._spool.waiting):
                self._add(episode)
        except OSError:
            metrics.RECORDING_FAILURES.inc()
            log.exception("spool not readable", extra={"folder": str(self._settings.bridge_spool)})
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                all_sent = await self._send_all()
            except Exception:  # whatever it is, the others must not be stuck behind it for good
                metrics.RECORDING_FAILURES.inc()
                log.exception("recorded episodes not stored yet")
                all_sent = False
            if not all_sent:
                await asyncio.sleep(self._settings.bridge_record_retry_s)
                self._news.set()

    async def _send_all(self) -> bool:
        """Send everything that waits, until one attempt fails."""
        for episode_id, (episode, settled) in list(self._waiting.items()):
            try:
                await self._send(episode)
            except InvalidInputError as error:
                metrics.RECORDING_FAILURES.inc()
                await self._set_aside(episode, error)
            except DreamGymError as error:
                metrics.RECORDING_FAILURES.inc()
                log.warning("recorded episode not stored yet", extra={"episode": episode_id, "cause": str(error)})
                return False
            else:
                metrics.RECORDED.inc()
                await asyncio.to_thread(self._spool.remove, episode_id)
            settled.set()
            self._waiting.pop(episode_id, None)
            metrics.SPOOLED.set(len(self._waiting))
        return True

    async def _send(self, episode: pb.StoredEpisode) -> None:
        async def requests() -> AsyncIterator[pb.AppendRequest]:
            yield pb.AppendRequest(episode=episode)

        try:
            response = await ReplayStub(self._channel).Append(requests(), timeout=self._settings.call_deadline_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, service="replay") from error
        if response.rejected:
            raise InvalidInputError(f"The replay store rejects it: {response.rejected[0].reason}")

    async def _set_aside(self, episode: pb.StoredEpisode, error: DreamGymError) -> None:
        extra = {"episode": episode.episode_id, "cause": str(error)}
        try:
            extra["kept_in"] = str(await asyncio.to_thread(self._spool.refuse, episode))
        except OSError as failure:
            extra["not_kept"] = str(failure)
        log.error("recorded episode refused by the replay store", extra=extra)
