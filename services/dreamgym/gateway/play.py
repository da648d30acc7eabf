"""Play sessions: each holds one `Environment.Play` stream to the dream or to the bridge."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from dreamgym.core.errors import CapacityError, ConflictError, DeadlineError, NotFoundError
from dreamgym.gateway.calls import error_of_call
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.wire.errors import error_from_failure, error_from_rpc

if TYPE_CHECKING:
    from dreamgym.v1.environment_pb2_grpc import EnvironmentAsyncStub  # a type of the stubs only

log = logging.getLogger(__name__)


@dataclass
class PlaySession:
    """One episode that a person plays."""

    id: str
    tenant_id: str
    where: str
    call: Any
    used_at: float = field(default_factory=time.monotonic)
    steps: int = 0
    ended: bool = False
    # One stream, one move at a time.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class PlaySessions:
    """The open sessions of this process. They do not survive it: an episode lives in its stream."""

    def __init__(self, dream: EnvironmentAsyncStub, real: EnvironmentAsyncStub, settings: GatewaySettings) -> None:
        # Any: the generated stubs do not know a call that is written to move by move.
        self._streams: dict[str, Any] = {"dream": dream, "real": real}
        self.settings = settings
        self.sessions: dict[str, PlaySession] = {}

    async def open(self, tenant_id: str, where: str, reset: pb.Reset) -> tuple[PlaySession, pb.Observation]:
        """Start an episode. Raises CapacityError if too many are open, or the environment's own error."""
        if len(self.sessions) >= self.settings.max_play_sessions:
            raise CapacityError(
                f"All {self.settings.max_play_sessions} play sessions are in use.",
                remedy="Close one (DELETE /v1/play/{session}) or wait until an idle one ends.",
            )
        session = PlaySession(id=new_id("play"), tenant_id=tenant_id, where=where, call=self._streams[where].Play())
        self.sessions[session.id] = session
        reset.episode_id = session.id
        try:
            return session, await self._move(session, pb.PlayRequest(reset=reset))
        except BaseException:
            self._end(session)
            raise

    async def act(self, tenant_id: str, session_id: str, action: str) -> tuple[PlaySession, pb.Observation]:
        """One step. Raises NotFoundError, ConflictError after the end, or the environment's own error."""
        session = self._find(tenant_id, session_id)
        async with session.turn:
            if session.ended:
                raise ConflictError("This episode has ended.", remedy="Open a new session.")
            observation = await self._move(session, pb.PlayRequest(act=pb.Act(action=action)))
            session.steps += 1
            session.ended = observation.done
            return session, observation

    def close(self, tenant_id: str, session_id: str) -> None:
        """End a session; its stream frees what it held."""
        self._end(self._find(tenant_id, session_id))

    def close_all(self) -> None:
        for session in list(self.sessions.values()):
            self._end(session)

    async def expire(self) -> None:
        """End idle sessions, until cancelled."""
        while True:
            await asyncio.sleep(min(5.0, self.settings.play_idle_s / 4))
            for session in list(self.sessions.values()):
                if time.monotonic() - session.used_at > self.settings.play_idle_s and not session.turn.locked():
                    log.info("play session idle", extra={"session": session.id})
                    self._end(session)

    async def _move(self, session: PlaySession, request: pb.PlayRequest) -> pb.Observation:
        session.used_at = time.monotonic()
        service = "experience" if session.where == "dream" else "bridge"
        try:
            async with asyncio.timeout(self.settings.play_turn_deadline_s):
                await session.call.write(request)
                response = await session.call.read()
        except TimeoutError:
            self._end(session)
            raise DeadlineError(
                f"The {service} service took longer than {self.settings.play_turn_deadline_s:g} s for one step.",
                remedy="Open a new session; see the service's log.",
            ) from None
        except grpc.RpcError as error:
            self._end(session)
            raise error_from_rpc(error, service=service) from error
        except asyncio.InvalidStateError as error:  # written to after the end
            response = grpc.aio.EOF
            log.info("play session lost", extra={"session": session.id, "reason": str(error)})
        if response is grpc.aio.EOF:
            cause = await error_of_call(session.call, service=service)
            self._end(session)
            raise cause
        if response.WhichOneof("result") == "failure":
            self._end(session)
            raise error_from_failure(response.failure)
        observation: pb.Observation = response.observation
        return observation

    def _find(self, tenant_id: str, session_id: str) -> PlaySession:
        session = self.sessions.get(session_id)
        if session is None or session.tenant_id != tenant_id:
            raise NotFoundError(
                f"There is no play session {session_id!r}.", remedy="It ended or was idle too long: open a new one."
            )
        return session

    def _end(self, session: PlaySession) -> None:
        session.ended = True
        session.call.cancel()
        self.sessions.pop(session.id, None)
