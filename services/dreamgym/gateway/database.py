"""The connection pool and its sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from sqlalchemy import text
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from dreamgym.core.errors import UnavailableError
from dreamgym.gateway.settings import GatewaySettings


class Database:
    """Opens transactions; a dead database becomes `UnavailableError`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.engine = create_async_engine(
            settings.database_url,
            pool_size=settings.database_pool_size,
            pool_timeout=10,
            # A restarted database must not break the first request of each pooled connection.
            pool_pre_ping=True,
            json_serializer=lambda value: orjson.dumps(value).decode(),
            json_deserializer=orjson.loads,
            connect_args={
                "application_name": "dreamgym-gateway",
                "connect_timeout": 5,
                "options": "-c statement_timeout=30000 -c lock_timeout=10000",
            },
        )
        self._sessions = async_sessionmaker(self.engine, expire_on_commit=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """A session that commits on leaving without an error and rolls back otherwise."""
        try:
            async with self._sessions.begin() as session:
                yield session
        except (OperationalError, InterfaceError, PoolTimeoutError) as error:
            raise UnavailableError(
                f"The database does not answer: {str(error).splitlines()[0]}",
                remedy="Retry; if it stays, check DREAMGYM_DATABASE_URL and the database's log.",
            ) from error

    async def ping(self) -> None:
        """Raise UnavailableError unless the database answers."""
        async with self.transaction() as session:
            await session.execute(text("SELECT 1"))

    async def close(self) -> None:
        await self.engine.dispose()
