"""Real servers for the integration tests: PostgreSQL with all migrations, and the services over gRPC."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

# Before gRPC is imported: its fork handlers write into the output of the database programs that tests start.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import pytest
from pydantic import SecretStr

from dreamgym.embedded.migrate import find_alembic_ini, migrate
from dreamgym.embedded.platform import EmbeddedPlatform
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.wire.channel import open_channel
from dreamgym.wire.server import start_server
from dreamgym.wire.settings import ServiceSettings
from support.embedded import running_platform, state_folder

Register = Callable[[grpc.aio.Server], None]
GrpcServer = Callable[..., Awaitable[grpc.aio.Channel]]


@pytest.fixture(scope="session")
def embedded_postgres() -> Iterator[EmbeddedPostgres]:
    """A cluster for the test session, without any database of ours."""
    with state_folder() as state:
        server = EmbeddedPostgres(state)
        try:
            with server:
                yield server
        finally:
            server.wipe()


@pytest.fixture(scope="module")
def platform() -> Iterator[EmbeddedPlatform]:
    """The whole platform as `dreamgym up` starts it, for the tests of one module."""
    with running_platform() as running:
        yield running


@pytest.fixture(scope="session")
def database_url(embedded_postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> str:
    """SQLAlchemy's address of a database migrated to all heads. Tests share it: use fresh ids, leave no assumption."""
    embedded_postgres.ensure_database("dreamgym")
    url = embedded_postgres.url("dreamgym")
    migrate(url, find_alembic_ini(), tmp_path_factory.mktemp("migrations") / "alembic.log")
    return url


@pytest.fixture
def service_settings(database_url: str, tmp_path: Path) -> ServiceSettings:
    """Settings of a service: the shared database, a token, an object store of the test's own."""
    return ServiceSettings(
        database_url=database_url, service_token=SecretStr("integration-token"), object_store=tmp_path / "objects"
    )


@pytest.fixture
async def grpc_server() -> AsyncIterator[GrpcServer]:
    """Serves `register` functions on a free port and answers an open channel to them: `await grpc_server(settings, f)`."""
    servers: list[grpc.aio.Server] = []
    channels: list[grpc.aio.Channel] = []

    async def serve(settings: ServiceSettings, *register: Register) -> grpc.aio.Channel:
        server, port = await start_server("127.0.0.1:0", settings, register, [])
        servers.append(server)
        channels.append(open_channel(f"127.0.0.1:{port}", settings))
        return channels[-1]

    yield serve
    for channel in channels:
        await channel.close(None)
    for server in servers:
        await server.stop(None)
