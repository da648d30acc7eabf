"""A replay service over gRPC with a real PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from dreamgym.replay.embedding import Embedder
from dreamgym.replay.encoder import HashingEncoder
from dreamgym.replay.server import ReplayServicer
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.store import ReplayStore
from dreamgym.v1.replay_pb2_grpc import ReplayStub, add_ReplayServicer_to_server
from dreamgym.wire.settings import ServiceSettings
from support.replay import Serve

if TYPE_CHECKING:  # the asynchronous stub exists only for the type checker
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub


@pytest.fixture
def environment_id() -> str:
    return f"kitchen'; -- {uuid.uuid4()}"


@pytest.fixture
async def serve(
    service_settings: ServiceSettings, grpc_server: Callable[..., Awaitable[grpc.aio.Channel]]
) -> AsyncIterator[Serve]:
    stores = []

    async def start(encoder: HashingEncoder | None = None, **changes: Any) -> tuple[ReplayAsyncStub, ReplayStore]:
        settings = ReplaySettings(**{**service_settings.model_dump(), **changes})
        store = ReplayStore(settings, Embedder(encoder or HashingEncoder(), settings.encoder_cache_texts))
        stores.append(store)
        servicer = ReplayServicer(store, settings)
        channel = await grpc_server(settings, lambda server: add_ReplayServicer_to_server(servicer, server))
        return ReplayStub(channel), store

    yield start
    for store in stores:
        await store.close()


@pytest.fixture
async def replay(serve: Serve) -> ReplayAsyncStub:
    stub, _ = await serve()
    return stub
