"""What one gateway process holds: the pool, the clients of the other services, the sweeper and the play sessions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dreamgym.gateway.database import Database
from dreamgym.gateway.dispatch import Dispatcher
from dreamgym.gateway.keys import ensure_first_key
from dreamgym.gateway.play import PlaySessions
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.sweeper import Sweeper
from dreamgym.inference.model_store import ModelStore
from dreamgym.v1.environment_pb2_grpc import EnvironmentStub
from dreamgym.v1.replay_pb2_grpc import ReplayStub
from dreamgym.wire.channel import open_channel

if TYPE_CHECKING:
    from dreamgym.v1.environment_pb2_grpc import EnvironmentAsyncStub  # types of the stubs only
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub


@dataclass
class GatewayState:
    """Shared by all requests of the process."""

    settings: GatewaySettings
    database: Database
    dispatcher: Dispatcher
    sweeper: Sweeper
    replay: ReplayAsyncStub
    play: PlaySessions
    models: ModelStore
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    background: set[asyncio.Task[object]] = field(default_factory=set)

    def start_soon(self, work: asyncio.Task[object]) -> None:
        """Keep a task alive until it is done."""
        self.background.add(work)
        work.add_done_callback(self.background.discard)


@contextlib.asynccontextmanager
async def open_state(settings: GatewaySettings) -> AsyncIterator[GatewayState]:
    """Open everything, make the first key, start the background work; close all of it on leaving."""
    database = Database(settings)
    dispatcher = Dispatcher(database, settings)
    channels = [
        open_channel(address, settings)
        for address in (settings.replay_address, settings.experience_address, settings.bridge_address)
    ]
    replay: ReplayAsyncStub = ReplayStub(channels[0])
    dream: EnvironmentAsyncStub = EnvironmentStub(channels[1])
    real: EnvironmentAsyncStub = EnvironmentStub(channels[2])
    state = GatewayState(
        settings=settings,
        database=database,
        dispatcher=dispatcher,
        sweeper=Sweeper(database, dispatcher, interval_s=settings.sweep_interval_s, lease_ttl_s=settings.lease_ttl_s),
        replay=replay,
        play=PlaySessions(dream, real, settings),
        models=ModelStore(settings.object_store),
    )
    try:
        await ensure_first_key(database, settings.state_dir)
        state.start_soon(asyncio.create_task(state.sweeper.run()))
        state.start_soon(asyncio.create_task(state.play.expire()))
        yield state
    finally:
        state.stopping.set()
        work = list(state.background)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        state.play.close_all()
        for channel in channels:
            await channel.close(None)
        dispatcher.close()
        await database.close()
