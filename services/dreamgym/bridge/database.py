"""The bridge's database: blocking SQLAlchemy sessions run in threads of their own, with deadlines, errors typed.

Every statement commits by itself. What belongs together is one statement: that saves two round trips on the way of
each real action, and leaves no half-done transaction behind a lost connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from dreamgym.bridge.settings import BridgeSettings
from dreamgym.core.errors import UnavailableError

Result = TypeVar("Result")


class Database:
    """Runs functions on a session. A stale connection is noticed before its use; nothing is retried after it."""

    def __init__(self, settings: BridgeSettings) -> None:
        timeout_s, connections = settings.bridge_database_timeout_s, settings.bridge_database_connections
        self._engine = create_engine(
            settings.database_url,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=timeout_s,
            pool_pre_ping=True,
            isolation_level="AUTOCOMMIT",
            connect_args={
                "connect_timeout": timeout_s,
                "tcp_user_timeout": timeout_s * 1000,
                "options": f"-c statement_timeout={timeout_s * 1000} -c lock_timeout={timeout_s * 1000}",
                "application_name": "dreamgym-bridge",
            },
        )
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="bridge-database")

    async def run(self, work: Callable[[Session], Result]) -> Result:
        """Run `work` in a thread.

        Raises UnavailableError when the database does not answer; whether the last statement took effect is then
        unknown, so that the caller must take the careful side.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()

    def _run(self, work: Callable[[Session], Result]) -> Result:
        try:
            with Session(self._engine) as session:
                return work(session)
        except ProgrammingError as error:
            raise UnavailableError(
                f"The bridge's tables do not fit this version: {error.orig}.",
                remedy="Run the migrations: `alembic upgrade heads`.",
            ) from error
        except (DBAPIError, PoolTimeoutError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise UnavailableError(
                f"The bridge's database does not answer: {str(cause).strip().splitlines()[0]}.",
                remedy="No action is sent without it. Check DREAMGYM_DATABASE_URL and the database's log.",
            ) from error
