"""The gateway's fixtures: REST and gRPC on real ports, over PostgreSQL, Valkey and replay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from dreamgym.embedded.ports import choose_port
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.valkey import EmbeddedValkey
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.replay.server import start as start_replay
from dreamgym.replay.settings import ReplaySettings
from support.gateway import TOKEN, Platform, platform_with


@pytest.fixture(scope="module")
def broker(embedded_postgres: EmbeddedPostgres) -> Iterator[str]:
    with EmbeddedValkey(embedded_postgres.state_dir) as server:
        yield server.url()


@pytest.fixture
def settings(database_url: str, broker: str, tmp_path: Path) -> GatewaySettings:
    return GatewaySettings(
        database_url=database_url,
        broker_url=broker,
        service_token=SecretStr(TOKEN),
        object_store=tmp_path / "objects",
        state_dir=tmp_path / "state",
        gateway_port=0,
        jobs_address="127.0.0.1:0",
        replay_address=f"127.0.0.1:{choose_port()}",
        experience_address=f"127.0.0.1:{choose_port()}",
        bridge_address=f"127.0.0.1:{choose_port()}",
        lease_ttl_s=20.0,
        sweep_interval_s=0.1,
        feed_poll_s=0.05,
        drain_s=1.0,
    )


@pytest.fixture
async def platform(settings: GatewaySettings) -> AsyncIterator[Platform]:
    async with platform_with(settings) as platform:
        yield platform


@pytest.fixture
async def replay(settings: GatewaySettings) -> AsyncIterator[None]:
    shared = ReplaySettings(
        database_url=settings.database_url, service_token=settings.service_token, object_store=settings.object_store
    )
    server, _, store = await start_replay(shared, settings.replay_address)
    yield
    await server.stop(None)
    await store.close()
