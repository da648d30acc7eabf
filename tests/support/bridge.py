"""A bridge over gRPC in this process or its own, episodes played on it, and its books in the database."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psycopg
from prometheus_client import REGISTRY

from dreamgym.bridge.server import SERVICE_NAME, BridgeService
from dreamgym.bridge.settings import BridgeSettings
from dreamgym.embedded.ports import choose_port
from dreamgym.replay import server as replay
from dreamgym.replay.settings import ReplaySettings
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.v1 import replay_pb2 as replay_pb
from dreamgym.v1.environment_pb2_grpc import EnvironmentStub, add_EnvironmentServicer_to_server
from dreamgym.v1.replay_pb2_grpc import ReplayStub
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import dump_json
from dreamgym.wire.server import start_server
from dreamgym.wire.settings import ServiceSettings

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
Stored = Callable[[str], Awaitable[list[replay_pb.StoredEpisode]]]


@asynccontextmanager
async def serving(settings: BridgeSettings) -> AsyncIterator[Any]:
    """A bridge on a free port and a client of it."""
    service = BridgeService(settings)
    service.start()
    server, port = await start_server(
        "127.0.0.1:0", settings, [lambda server: add_EnvironmentServicer_to_server(service, server)], [SERVICE_NAME]
    )
    channel = open_channel(f"127.0.0.1:{port}", settings)
    try:
        yield EnvironmentStub(channel)
    finally:
        await channel.close(None)
        await server.stop(None)
        await service.close()


def corridor(length: int = 3, *, job: str = "", budget: int = 100, **fields: Any) -> pb.Reset:
    task = pb.Task(id="walk", instruction="Walk to the end.", metadata=dump_json({"length": length}), split="train")
    values = {"environment_id": "halls", "adapter": "corridor", "job_id": job or uuid.uuid4().hex, "task": task}
    return pb.Reset(**{**values, "episode_id": uuid.uuid4().hex, "transition_budget": budget, **fields})


@dataclass
class Played:
    """What came over one stream."""

    observations: list[pb.Observation] = field(default_factory=list)
    failure: pb.Failure | None = None

    @property
    def last(self) -> pb.Observation:
        return self.observations[-1]


async def play(stub: Any, reset: pb.Reset, actions: Sequence[str]) -> Played:
    """Send a reset and the actions one by one until the episode or the actions end."""
    call = stub.Play()
    played = Played()
    moves = [pb.PlayRequest(reset=reset), *(pb.PlayRequest(act=pb.Act(action=action)) for action in actions)]
    for move in moves:
        await call.write(move)
        response = await call.read()
        if response.WhichOneof("result") == "failure":
            played.failure = response.failure
            break
        played.observations.append(response.observation)
        if response.observation.done:
            break
    await call.done_writing()
    assert await call.read() == EOF
    return played


class Rows:
    """Reads what the bridge wrote, through a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("postgresql+psycopg", "postgresql")

    def __call__(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url) as connection:
            return connection.execute(query, values).fetchall()


async def until(condition: Callable[[], bool | Awaitable[bool]], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while True:
            result = condition()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def replay_service(settings: ServiceSettings, **changes: object) -> AsyncIterator[tuple[str, Stored]]:
    """The replay service: its address, and a reader of the episodes that it has of an environment."""
    server, port, store = await replay.start(ReplaySettings(**{**settings.model_dump(), **changes}), "127.0.0.1:0")
    address = f"127.0.0.1:{port}"
    channel = open_channel(address, settings)
    stub: Any = ReplayStub(channel)

    async def stored(environment_id: str) -> list[replay_pb.StoredEpisode]:
        return [one async for one in stub.ListEpisodes(replay_pb.ListEpisodesRequest(environment_id=environment_id))]

    try:
        yield address, stored
    finally:
        await channel.close(None)
        await server.stop(None)
        await store.close()


def spooled(settings: BridgeSettings) -> list[Path]:
    return sorted(settings.bridge_spool.glob("*.episode"))


@asynccontextmanager
async def bridge_process(settings: BridgeSettings) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any]]:
    """`python -m dreamgym.bridge.server` and a client of it."""
    address = f"127.0.0.1:{choose_port()}"
    environment = {
        **os.environ,
        "DREAMGYM_BRIDGE_ADDRESS": address,
        "DREAMGYM_DATABASE_URL": settings.database_url,
        "DREAMGYM_SERVICE_TOKEN": settings.service_token.get_secret_value(),
        "DREAMGYM_STATE_DIR": str(settings.state_dir),
        "DREAMGYM_BRIDGE_ADAPTERS": '{"corridor": "corridor:CorridorAdapter"}',
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "dreamgym.bridge.server", env=environment)
    channel = open_channel(address, settings)
    try:
        yield process, EnvironmentStub(channel)
    finally:
        await channel.close(None)
        if process.returncode is None:
            process.kill()
            await process.wait()


class Relay:
    """A TCP relay in front of the database, so that it can be taken away from one bridge only."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        listening: int = self._server.sockets[0].getsockname()[1]
        return listening

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


def transitions_sent() -> float:
    return REGISTRY.get_sample_value("dreamgym_bridge_transitions_total", {"adapter": "corridor"}) or 0.0
