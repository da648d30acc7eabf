"""The replay store: append, list, count and delete episodes; `search` finds their transitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from sqlalchemy import delete, exc, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from dreamgym.core.episodes import Source
from dreamgym.core.errors import CapacityError
from dreamgym.replay.appending import insert_episodes
from dreamgym.replay.database import open_engine, typed_errors
from dreamgym.replay.embedding import Embedder
from dreamgym.replay.encoder import require_same_encoder
from dreamgym.replay.indexing import Indexer
from dreamgym.replay.listing import Selection, list_episodes, newest_id
from dreamgym.replay.partitions import drop_environment, ensure_environment, partition_name
from dreamgym.replay.records import EpisodeRecord, Filters, Hit, Query, SourceCount, Statistics, Stored
from dreamgym.replay.search import find_nearest
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.tables import SCHEMA, EnvironmentRow, EpisodeRow


class ReplayStore:
    """Episodes and transitions in Postgres, of many environments.

    Every method raises typed errors only: UnavailableError while Postgres is away (and works again when it is back),
    DeadlineError, CapacityError, StorageFullError.
    """

    def __init__(self, settings: ReplaySettings, embedder: Embedder, engine: AsyncEngine | None = None) -> None:
        self.settings = settings
        self.embedder = embedder
        self.engine = engine or open_engine(settings)
        # One statement is a snapshot by itself: reads need no transaction around them.
        self.reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self.indexer = Indexer(self.reading, settings)

    @property
    def _deadline_s(self) -> float:
        return self.settings.replay_statement_deadline_s + self.settings.replay_pool_wait_s

    async def close(self) -> None:
        await self.indexer.close()
        await self.engine.dispose()
        self.embedder.close()

    async def append(self, episodes: Sequence[EpisodeRecord]) -> Stored:
        """Store whole episodes, those of one environment in one transaction; one that is there already stays as it is.

        Call `finish_append` after the last of a series.
        """
        by_environment: dict[str, dict[str, EpisodeRecord]] = {}
        for episode in episodes:
            by_environment.setdefault(episode.environment_id, {}).setdefault(episode.episode_id, episode)
        stored = Stored()
        for environment_id, records in by_environment.items():
            stored += await self._append_to(environment_id, records)
        return Stored(stored.episodes, stored.transitions, len(episodes) - stored.episodes)

    async def finish_append(self, environment_ids: Iterable[str]) -> None:
        """Build vector indexes in the background where enough data has come in."""
        async with typed_errors(self._deadline_s), self.reading.connect() as connection:
            rows = await connection.execute(
                select(EnvironmentRow.environment_id, EnvironmentRow.transitions).where(
                    EnvironmentRow.environment_id.in_(environment_ids)
                )
            )
            for environment_id, transitions in rows:
                self.indexer.consider(environment_id, transitions)

    async def search(
        self, environment_id: str, queries: Sequence[Query], top_k: int, filters: Filters
    ) -> list[list[Hit]]:
        """The `top_k` most similar transitions of each query, best first; none where nothing is stored."""
        if not queries:
            return []
        vectors = await self.embedder.embed([(query.state, query.action) for query in queries])
        encoder = self.embedder.encoder.name
        async with typed_errors(self._deadline_s), self.reading.connect() as connection:
            try:
                return await find_nearest(connection, environment_id, encoder, queries, vectors, top_k, filters)
            except exc.ProgrammingError:
                # Before its first append, or after its deletion, an environment has no partition.
                if await self._stored_encoder(connection, environment_id) is None:
                    return [[] for _ in queries]
                raise

    def list_episodes(self, environment_id: str, selection: Selection) -> AsyncIterator[EpisodeRecord]:
        """Episodes in the order of storing, read page by page (see `listing`)."""
        return list_episodes(self.reading, environment_id, selection, self._deadline_s)

    async def statistics(self, environment_id: str) -> Statistics:
        """Counts by source and split, the newest transition id and the encoder, all of one moment."""
        async with typed_errors(self._deadline_s), self.engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ")
            encoder = await connection.scalar(
                select(EnvironmentRow.encoder).where(EnvironmentRow.environment_id == environment_id)
            )
            rows = await connection.execute(
                select(
                    EpisodeRow.source,
                    EpisodeRow.split,
                    func.count(),
                    func.sum(EpisodeRow.transitions),
                    func.count().filter(EpisodeRow.success),
                )
                .where(EpisodeRow.environment_id == environment_id)
                .group_by(EpisodeRow.source, EpisodeRow.split)
                .order_by(EpisodeRow.source, EpisodeRow.split)
            )
            counts = tuple(SourceCount(Source(row[0]), row[1], row[2], int(row[3]), row[4]) for row in rows)
            return Statistics(counts, await newest_id(connection, environment_id), encoder or "")

    async def delete_episodes(self, environment_id: str, episode_ids: Sequence[str]) -> tuple[int, int]:
        """Remove episodes; answers (transitions, episodes) removed. Unknown ids are ignored: they are gone already."""
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            if await _lock(connection, environment_id) is None:
                return 0, 0
            transitions = await connection.execute(
                text(f"DELETE FROM {SCHEMA}.{partition_name(environment_id)} WHERE episode_id = ANY(:ids)"),
                {"ids": list(episode_ids)},
            )
            episodes = await connection.execute(
                delete(EpisodeRow).where(
                    EpisodeRow.environment_id == environment_id, EpisodeRow.episode_id.in_(episode_ids)
                )
            )
            await _count(connection, environment_id, -transitions.rowcount)
            return transitions.rowcount, episodes.rowcount

    async def delete_environment(self, environment_id: str) -> tuple[int, int]:
        """Remove everything of an environment, its encoder included; answers (transitions, episodes) removed."""
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            transitions = await _lock(connection, environment_id)
            if transitions is None:
                return 0, 0
            episodes = await connection.execute(delete(EpisodeRow).where(EpisodeRow.environment_id == environment_id))
            await drop_environment(connection, environment_id)
        self.indexer.forget(environment_id)
        return transitions, episodes.rowcount

    async def _append_to(self, environment_id: str, records: dict[str, EpisodeRecord]) -> Stored:
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            ours = self.embedder.encoder.name
            await ensure_environment(connection, environment_id, ours)
            stored_encoder = await self._stored_encoder(connection, environment_id)
            require_same_encoder(environment_id, stored=stored_encoder or ours, ours=ours)
            known = await connection.scalars(
                select(EpisodeRow.episode_id).where(
                    EpisodeRow.environment_id == environment_id, EpisodeRow.episode_id.in_(list(records))
                )
            )
            new = [record for name, record in records.items() if name not in set(known)]
        if not new:
            return Stored()
        vectors = await self.embedder.embed([(t.state, t.action) for record in new for t in record.transitions])
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            # Held until the commit: ids then become visible in their order, which makes a cursor a snapshot.
            if await _lock(connection, environment_id) is None:
                raise CapacityError(f"Environment {environment_id!r} was deleted during the append.", remedy="Retry.")
            stored = await insert_episodes(connection, environment_id, new, vectors)
            await _count(connection, environment_id, stored.transitions)
        return stored

    async def _stored_encoder(self, connection: AsyncConnection, environment_id: str) -> str | None:
        return await connection.scalar(
            select(EnvironmentRow.encoder).where(EnvironmentRow.environment_id == environment_id)
        )


async def _lock(connection: AsyncConnection, environment_id: str) -> int | None:
    """Hold the environment's row until the transaction ends; answers its number of transitions, None without a row."""
    return await connection.scalar(
        select(EnvironmentRow.transitions).where(EnvironmentRow.environment_id == environment_id).with_for_update()
    )


async def _count(connection: AsyncConnection, environment_id: str, change: int) -> None:
    await connection.execute(
        update(EnvironmentRow)
        .where(EnvironmentRow.environment_id == environment_id)
        .values(transitions=EnvironmentRow.transitions + change)
    )
