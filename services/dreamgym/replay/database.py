"""The way to Postgres: one bounded pool, a deadline for everything, and typed errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import psycopg
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from dreamgym.core.errors import (
    CapacityError,
    DeadlineError,
    DreamGymError,
    InvalidInputError,
    StorageFullError,
    UnavailableError,
)
from dreamgym.replay.settings import ReplaySettings

SCANNED_MAX = 1_000
"""Rows that an index scan passes over, at most, to find enough that pass the filters."""


def open_engine(settings: ReplaySettings) -> AsyncEngine:
    """A pool that opens connections when they are needed and finds out by itself that the database was restarted."""
    deadline_ms = int(settings.replay_statement_deadline_s * 1000)
    session = {
        "statement_timeout": deadline_ms,
        "lock_timeout": deadline_ms // 2,
        "idle_in_transaction_session_timeout": 2 * deadline_ms,
        # Recall 0.996 at 100k transitions; strict order, so that filters do not disturb the ranking.
        "hnsw.ef_search": 100,
        "hnsw.iterative_scan": "strict_order",
        # Scanning on costs more per row than an exact scan, which is what follows when this is not enough.
        "hnsw.max_scan_tuples": SCANNED_MAX,
    }
    return create_async_engine(
        settings.database_url,
        pool_size=settings.replay_pool_size,
        max_overflow=0,
        pool_timeout=settings.replay_pool_wait_s,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": settings.replay_connect_deadline_s,
            "options": " ".join(f"-c {name}={value}" for name, value in session.items()),
            "application_name": "dreamgym-replay",
        },
    )


@asynccontextmanager
async def typed_errors(deadline_s: float) -> AsyncIterator[None]:
    """Everything that goes wrong inside becomes a DreamGymError; nothing inside takes longer than `deadline_s`.

    The server's own timeouts end a statement; this deadline also ends the wait for a server that is silent.
    """
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError as error:
        raise DeadlineError(
            f"The replay database did not answer within {deadline_s:g} s.",
            remedy="Retry; if it stays slow, look at its load and locks.",
        ) from error
    except exc.TimeoutError as error:
        raise CapacityError(
            "All connections of the replay service are in use.", remedy="Retry, or raise DREAMGYM_REPLAY_POOL_SIZE."
        ) from error
    except exc.DBAPIError as error:
        _raise_typed(error.orig, error)
    except psycopg.Error as error:
        _raise_typed(error, error)
    except OSError as error:
        raise _unavailable(error) from error


def _raise_typed(cause: BaseException | None, error: Exception) -> NoReturn:
    raise _typed(cause if isinstance(cause, psycopg.Error) else None, error) from error


def _typed(cause: psycopg.Error | None, error: Exception) -> DreamGymError:
    match cause:
        case psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName() | psycopg.errors.UndefinedColumn():
            return UnavailableError(
                f"The replay database has not the expected tables: {_first_line(cause)}.",
                remedy="Run `alembic upgrade heads`.",
            )
        case psycopg.errors.DiskFull():
            return StorageFullError("The disk of the replay database is full.", remedy="Free or add space, then retry.")
        case psycopg.errors.QueryCanceled():
            return DeadlineError("A statement of the replay database took too long.", remedy="Retry with less at once.")
        case (
            psycopg.errors.LockNotAvailable()
            | psycopg.errors.DeadlockDetected()
            | psycopg.errors.SerializationFailure()
        ):
            return CapacityError("The environment's data is being changed by another call.", remedy="Retry.")
        case psycopg.errors.DataError():
            return InvalidInputError(
                f"The replay database refuses a value: {_first_line(cause)}.", remedy="Correct the value."
            )
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return _unavailable(cause)
        case _:
            return DreamGymError(
                f"The replay database failed: {_first_line(cause or error)}.", remedy="See the replay service's log."
            )


def _unavailable(error: BaseException) -> UnavailableError:
    return UnavailableError(
        f"The replay database does not answer: {_first_line(error)}.",
        remedy="Retry once Postgres runs again (DREAMGYM_DATABASE_URL says which); nothing half is stored.",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
