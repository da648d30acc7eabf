"""The bridge's edge: serves `Environment` for the real world. `python -m dreamgym.bridge.server`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from dreamgym.bridge.adapters.protocol import AdapterState
from dreamgym.bridge.database import Database
from dreamgym.bridge.episode import EpisodeRequest, RealEpisode
from dreamgym.bridge.guard import Guard
from dreamgym.bridge.ledger import Ledger
from dreamgym.bridge.pool import WorkerPool
from dreamgym.bridge.recording import Recorder
from dreamgym.bridge.reset_request import read_reset
from dreamgym.bridge.sessions import SessionKeeper
from dreamgym.bridge.settings import BridgeSettings
from dreamgym.core.episodes import TerminationReason
from dreamgym.core.errors import BudgetExhaustedError, DeadlineError, DreamGymError, InvalidInputError
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.v1.environment_pb2_grpc import EnvironmentServicer, add_EnvironmentServicer_to_server
from dreamgym.wire.convert import episode_to_proto, termination_to_proto
from dreamgym.wire.errors import failure_message
from dreamgym.wire.logs import configure_logs
from dreamgym.wire.server import serve_until_stopped, start_server

SERVICE_NAME = "dreamgym.v1.Environment"
_LAST_EPISODES_S = 5.0

Result = TypeVar("Result")


class BridgeService(EnvironmentServicer):
    """Real episodes over gRPC. `start` before serving, `close` after the server has stopped."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._database = Database(settings)
        self._ledger = Ledger(self._database)
        self._pool = WorkerPool(settings)
        self._recorder = Recorder(settings)
        self._keeper = SessionKeeper(self._ledger, settings.bridge_session_ttl_s)
        self._playing: set[object] = set()
        self._none_playing = asyncio.Event()
        self._none_playing.set()

    def start(self) -> None:
        """Start the background work: renewing sessions, sending what the spool holds."""
        self._recorder.start()
        self._keeper.start()

    async def close(self) -> None:
        """Let cut-off episodes be written down, then end the adapter processes and close everything."""
        try:
            async with asyncio.timeout(_LAST_EPISODES_S):
                await self._none_playing.wait()
        except TimeoutError:
            pass  # their sessions are closed by their time to live
        await self._pool.close()
        await self._recorder.close()
        await self._keeper.close()
        await self._database.close()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.EnvironmentInfo:  # noqa: N802
        if not request.adapter:
            raise InvalidInputError("DescribeRequest.adapter is empty.", remedy="Name the adapter.")
        info = await self._pool.info(request.adapter)
        return pb.EnvironmentInfo(
            environment_id=request.environment_id,
            kind=pb.ENVIRONMENT_KIND_REAL,
            description=info.description,
            max_steps=info.max_steps,
            capacity_left=self._pool.capacity_left,
            lists_admissible_actions=info.lists_admissible_actions,
        )

    async def Play(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.PlayRequest], context: Any
    ) -> AsyncIterator[pb.PlayResponse]:
        moves = aiter(request_iterator)
        try:
            request = read_reset(await self._first_move(moves))
            async for observation in self._episode(request, moves):
                yield pb.PlayResponse(observation=observation)
        except DreamGymError as error:
            yield pb.PlayResponse(failure=failure_message(error))

    async def _episode(
        self, request: EpisodeRequest, moves: AsyncIterator[pb.PlayRequest]
    ) -> AsyncIterator[pb.Observation]:
        ids = request.ids
        await self._ledger.check_budget(ids.budget, request.transition_budget)
        async with self._pool.lend(ids.adapter) as worker:
            guard = Guard.for_episode(
                self._settings.bridge_action_policies,
                environment_id=ids.environment_id,
                adapter=ids.adapter,
                longest=self._settings.bridge_action_characters,
            )
            episode = RealEpisode(request, worker, self._ledger, guard, self._settings)
            self._begins(episode)
            try:
                state = await _uninterrupted(self._begin(episode))
                yield _observation(state, episode)
                while episode.termination is None:
                    action = await self._next_action(moves)
                    if action is None:
                        episode.termination = TerminationReason.CANCELLED
                        break
                    state = await _uninterrupted(episode.act(action))
                    yield _observation(state, episode)
            except (asyncio.CancelledError, GeneratorExit):
                episode.termination = episode.termination or TerminationReason.CANCELLED
                raise
            except BudgetExhaustedError:
                episode.termination = TerminationReason.BUDGET
                raise
            except BaseException:
                episode.termination = TerminationReason.INFRASTRUCTURE
                raise
            finally:
                await _uninterrupted(self._conclude(episode))
        if request.record:
            await self._recorder.wait_stored(ids.episode_id, self._settings.bridge_record_wait_s)

    async def _begin(self, episode: RealEpisode) -> AdapterState:
        self._keeper.add(await episode.open())
        return await episode.begin()

    async def _conclude(self, episode: RealEpisode) -> None:
        try:
            finished = await episode.conclude()
            if finished is not None and episode.request.record:
                ids = episode.request.ids
                await self._recorder.submit(
                    episode_to_proto(
                        finished,
                        environment_id=ids.environment_id,
                        job_id=ids.budget.job_id,
                        policy_version=ids.policy_version,
                    )
                )
        finally:
            if episode.session_id is not None:
                self._keeper.remove(episode.session_id)
            self._playing.discard(episode)
            if not self._playing:
                self._none_playing.set()

    def _begins(self, episode: RealEpisode) -> None:
        self._playing.add(episode)
        self._none_playing.clear()

    async def _first_move(self, moves: AsyncIterator[pb.PlayRequest]) -> pb.Reset:
        move = await self._next_move(moves)
        if move is None or move.WhichOneof("move") != "reset":
            raise InvalidInputError("A stream's first message is not a Reset.", remedy="Send Reset, then Acts.")
        return move.reset

    async def _next_action(self, moves: AsyncIterator[pb.PlayRequest]) -> str | None:
        """The next action; None when the client has no more."""
        move = await self._next_move(moves)
        if move is None:
            return None
        if move.WhichOneof("move") != "act":
            raise InvalidInputError("A stream's later message is not an Act.", remedy="One stream is one episode.")
        return move.act.action

    async def _next_move(self, moves: AsyncIterator[pb.PlayRequest]) -> pb.PlayRequest | None:
        try:
            async with asyncio.timeout(self._settings.bridge_idle_limit_s):
                return await anext(moves, None)
        except TimeoutError:
            raise DeadlineError(
                f"The client sent nothing for {self._settings.bridge_idle_limit_s:g} s; the episode was ended.",
                remedy="Play on faster, or raise DREAMGYM_BRIDGE_IDLE_LIMIT_S.",
            ) from None


async def _uninterrupted(work: Awaitable[Result]) -> Result:
    """Await `work` to its end also if the stream is cancelled meanwhile: a paid action is sent and written down."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _observation(state: AdapterState, episode: RealEpisode) -> pb.Observation:
    ended = episode.termination
    return pb.Observation(
        state=state.state,
        reward=state.reward,
        done=ended is not None,
        success=ended is TerminationReason.SUCCESS,
        confidence=1.0,
        admissible_actions=state.admissible_actions,
        termination=termination_to_proto(ended),
        valid_action=state.valid_action,
    )


async def serve(settings: BridgeSettings) -> None:
    """Serve until SIGTERM, then finish running episodes within `drain_s`."""
    service = BridgeService(settings)
    service.start()
    server, _ = await start_server(
        settings.bridge_address,
        settings,
        [lambda server: add_EnvironmentServicer_to_server(service, server)],
        [SERVICE_NAME],
    )
    await serve_until_stopped(server, settings, service.close)


def main() -> None:
    settings = BridgeSettings()
    configure_logs("bridge", settings.log_level)
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
