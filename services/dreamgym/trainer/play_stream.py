"""One episode's `Environment.Play` stream, to the dream or to reality: Reset first, then Acts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc

from dreamgym.core.episodes import TerminationReason
from dreamgym.core.errors import DeadlineError, DreamGymError
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.v1 import environment_pb2_grpc
from dreamgym.wire.convert import termination_from_proto
from dreamgym.wire.errors import error_from_failure, error_from_rpc

T = TypeVar("T")


class PlayStream:
    """Every fault is raised as its typed error; `fault` then holds it, which tells it from errors of the caller's own.

    `service` and `episode` name the two ends in messages; `deadline_s` bounds each answer.
    """

    def __init__(self, channel: grpc.aio.Channel, service: str, episode: str, deadline_s: float) -> None:
        stub: Any = environment_pb2_grpc.EnvironmentStub(channel)
        self._stream = stub.Play()
        self._service = service
        self._episode = episode
        self._deadline_s = deadline_s
        self.fault: DreamGymError | None = None
        self.fault_reason: TerminationReason | None = None
        """As what the environment ended the episode with its fault, where it said so."""

    async def reset(self, reset: pb.Reset) -> pb.Observation:
        """Begin the episode; answers its first observation."""
        return await self._move(pb.PlayRequest(reset=reset))

    async def act(self, action: str) -> pb.Observation:
        return await self._move(pb.PlayRequest(act=pb.Act(action=action)))

    async def finish(self, *, until_stored: bool) -> None:
        """Say that no move will follow; `until_stored` waits for the environment to end the stream too."""
        with contextlib.suppress(asyncio.InvalidStateError):  # the environment may have ended the stream first
            await self._stream.done_writing()
        if until_stored:
            await self._typed(self._stream.read())

    async def close(self) -> None:
        """Free what the episode holds on both ends."""
        # Ends the call's own writer too, which would wait for another move for ever.
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._stream.done_writing()
        self._stream.cancel()

    async def _move(self, request: pb.PlayRequest) -> pb.Observation:
        # A stream that ended between two turns refuses the write; reading the answer then says why it ended.
        with contextlib.suppress(asyncio.InvalidStateError):
            await self._typed(self._stream.write(request))
        response: Any = await self._typed(self._stream.read())
        if response is grpc.aio.EOF:
            # The stream's status says why it ended early.
            code, details = await self._stream.code(), await self._stream.details()
            error = DreamGymError(f"The episode's stream ended early: {code.name} {details}.", remedy="See its log.")
            raise self._noted(error)
        if response.HasField("failure"):
            reason = termination_from_proto(response.failure.termination)
            # A fault of the environment says nothing about the policy, whatever it calls itself.
            self.fault_reason = None if reason is None or reason.is_outcome else reason
            raise self._noted(error_from_failure(response.failure))
        observation: pb.Observation = response.observation
        return observation

    async def _typed(self, call: Awaitable[T]) -> T:
        try:
            return await asyncio.wait_for(call, self._deadline_s)
        except TimeoutError as error:
            late = DeadlineError(
                f"The {self._service} took longer than {self._deadline_s} s for one turn of {self._episode}.",
                remedy="Raise rollouts.turn_deadline_s or lower rollouts.concurrency.",
            )
            raise self._noted(late) from error
        except grpc.RpcError as error:
            raise self._noted(error_from_rpc(error, service=self._service)) from error

    def _noted(self, error: DreamGymError) -> DreamGymError:
        self.fault = error
        return error
