"""The bridge's side of one adapter process: start it, call it with deadlines, kill it with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Self

from dreamgym.bridge import frames
from dreamgym.bridge.adapters.protocol import AdapterInfo, AdapterState
from dreamgym.core.errors import BY_CODE, AdapterError, DeadlineError

# An engine is other people's code: it gets no key to the platform.
_SECRETS = ("DREAMGYM_SERVICE_TOKEN", "DREAMGYM_DATABASE_URL", "DREAMGYM_BROKER_URL")
_CLOSE_DEADLINE_S = 3.0


class WorkerProcess:
    """One adapter process that plays one episode at a time. `broken` once it must not be used again."""

    def __init__(self, process: asyncio.subprocess.Process, adapter: str) -> None:
        self._process = process
        self.adapter = adapter
        self.episodes = 0
        self.broken = False
        self.info: AdapterInfo

    @classmethod
    async def start(cls, adapter: str, factory: str, deadline_s: float) -> Self:
        """Start a process and open `adapter` in it (`factory`: where a built-in one is not meant).

        Raises AdapterMissingError, AdapterError or DeadlineError; then nothing is left running.
        """
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dreamgym.bridge.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a group of its own, so that killing it takes its children along
        )
        worker = cls(process, adapter)
        try:
            message = {"call": "open", "adapter": adapter, "factory": factory}
            worker.info = frames.info_from_json(await worker._call(message, deadline_s))
        except frames.FrameError as error:
            await worker.kill()
            raise worker._failed("open", str(error)) from error
        except BaseException:
            await worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs and may be used."""
        return not self.broken and self._process.returncode is None

    async def reset(self, task: Mapping[str, Any], seed: int, deadline_s: float) -> AdapterState:
        """Start an episode. Raises the adapter's typed error, AdapterError or DeadlineError."""
        return self._state("reset", await self._call({"call": "reset", "task": dict(task), "seed": seed}, deadline_s))

    async def step(self, action: str, deadline_s: float) -> AdapterState:
        """Send one action. Raises as `reset`; after DeadlineError or AdapterError the process is gone."""
        return self._state("step", await self._call({"call": "step", "action": action}, deadline_s))

    async def close(self) -> None:
        """Let the adapter free what it holds, then end the process."""
        if self.alive:
            with contextlib.suppress(Exception):
                await self._call({"call": "close"}, _CLOSE_DEADLINE_S)
        await self.kill()

    async def kill(self) -> None:
        """End the process and everything in its group at once."""
        self.broken = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def _call(self, message: frames.Message, deadline_s: float) -> frames.Message:
        """One exchange. Any disturbance of it, a cancellation too, leaves the stream out of step: the process goes."""
        name = message["call"]
        if not self.alive:
            raise self._failed(name, "its process has ended")
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._exchange(message)
        except TimeoutError:
            await self.kill()
            raise DeadlineError(
                f"The adapter {self.adapter} did not answer {name} within {deadline_s:g} s; its process was killed.",
                remedy="Play the episode again; raise DREAMGYM_BRIDGE_STEP_DEADLINE_S if the environment is slow.",
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError, frames.FrameError) as error:
            cause = str(error) if isinstance(error, frames.FrameError) else await self._how_it_ended()
            await self.kill()
            raise self._failed(name, cause) from None
        except BaseException:
            await self.kill()
            raise
        if (problem := answer.get("error")) is not None:
            if problem.get("broken"):
                await self.kill()
            raise BY_CODE.get(problem["code"], AdapterError)(problem["message"], remedy=problem["remedy"])
        ok: frames.Message = answer["ok"]
        return ok

    async def _exchange(self, message: frames.Message) -> frames.Message:
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None
        assert reader is not None
        writer.write(frames.encode(message))
        await writer.drain()
        header = await reader.readexactly(frames.HEADER_BYTES)
        return frames.decode(await reader.readexactly(frames.body_length(header)))

    def _state(self, name: str, value: frames.Message) -> AdapterState:
        try:
            return frames.state_from_json(value)
        except frames.FrameError as error:
            self.broken = True
            raise self._failed(name, str(error)) from error

    async def _how_it_ended(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        code = self._process.returncode
        if code is None:
            return "it closed its stream"
        return (
            f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
        )

    def _failed(self, name: str, cause: str) -> AdapterError:
        return AdapterError(
            f"The adapter {self.adapter} failed in {name}: {cause}.",
            remedy="Its process is replaced; play the episode again. The bridge's log has the engine's last words.",
        )
