"""Builds the vector indexes of an environment once its data is large enough to need them.

Loading many transitions into an index costs 50 times as much as loading them without one, and up to a few thousand an
exact scan takes milliseconds. So a partition starts without. At the end of the append that brings it to
`replay_index_from_transitions` two are built in the background, one of the observed transitions and one of the dreams,
while searches and appends go on; from then on every append keeps them up to date.
"""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from dreamgym.core.errors import DreamGymError
from dreamgym.replay.database import typed_errors
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.tables import SCHEMA

log = logging.getLogger(__name__)
BUILD_DEADLINE_S = 3600.0
OBSERVED = "source <> 'dream'"
DREAMED = "source = 'dream'"
_INDEXES = {"observed_hnsw": OBSERVED, "dream_hnsw": DREAMED}


class Indexer:
    """Builds indexes one after the other; `engine` must be in autocommit, as CREATE INDEX CONCURRENTLY asks for."""

    def __init__(self, engine: AsyncEngine, settings: ReplaySettings) -> None:
        self._engine = engine
        self._threshold = settings.replay_index_from_transitions
        self._done: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    def consider(self, environment_id: str, transitions: int) -> None:
        """Start the build in the background if an environment of that many transitions is due; no bulk load should follow."""
        if transitions < self._threshold or environment_id in self._done or environment_id in self._tasks:
            return
        task = asyncio.create_task(self._build(environment_id))
        self._tasks[environment_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(environment_id, None))

    def forget(self, environment_id: str) -> None:
        """The environment's partition, and its index with it, is gone."""
        self._done.discard(environment_id)

    async def idle(self) -> None:
        """Wait until no build is under way."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await self.idle()

    async def _build(self, environment_id: str) -> None:
        partition = partition_name(environment_id)
        try:
            async with self._turn, typed_errors(BUILD_DEADLINE_S), self._engine.connect() as connection:
                await _build_indexes(connection, partition)
        except DreamGymError as error:
            # Searches stay exact, only slower; the next append tries again.
            log.warning("vector index not built", extra={"environment": environment_id, "reason": str(error)})
            return
        self._done.add(environment_id)
        log.info("vector index is there", extra={"environment": environment_id, "partition": partition})


async def drop_indexes(connection: AsyncConnection, partition: str) -> None:
    """Drop the vector indexes of a partition, where there are any; `Indexer.consider` builds them again."""
    for suffix in _INDEXES:
        await connection.execute(text(f"DROP INDEX IF EXISTS {SCHEMA}.{partition}_{suffix}"))


async def _build_indexes(connection: AsyncConnection, partition: str) -> None:
    lock = {"key": f"dreamgym index {partition}"}
    # Another replica of this service may be building the same index: wait for it, then find it done.
    await connection.execute(text("SET statement_timeout = 0"))
    await connection.execute(text("SET lock_timeout = 0"))
    try:
        await connection.execute(text("SELECT pg_advisory_lock(hashtextextended(:key, 0))"), lock)
        for suffix, predicate in _INDEXES.items():
            index = f"{partition}_{suffix}"
            valid = await connection.scalar(
                text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"),
                {"name": f"{SCHEMA}.{index}"},
            )
            if valid is False:  # left by a build that was interrupted
                await connection.execute(text(f"DROP INDEX CONCURRENTLY {SCHEMA}.{index}"))
            if not valid:
                await connection.execute(
                    text(
                        f"CREATE INDEX CONCURRENTLY {index} ON {SCHEMA}.{partition} USING hnsw"
                        f" (embedding halfvec_cosine_ops) WITH (m = 16, ef_construction = 64) WHERE {predicate}"
                    )
                )
        # Without statistics the planner may not take the indexes.
        await connection.execute(text(f"ANALYZE {SCHEMA}.{partition}"))
    finally:
        # The session holds lock and settings: end it instead of giving it back to the pool.
        await connection.invalidate()
