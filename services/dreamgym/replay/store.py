"""The replay store: append, list, count and delete episodes; `search` finds their transitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

from sqlalchemy import Row, delete, exc, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from dreamgym.core.episodes import Source
from dreamgym.core.errors import CapacityError
from dreamgym.replay.admission import Offer, count_refusals, refused, within_limits
from dreamgym.replay.appending import insert_episodes
from dreamgym.replay.database import open_engine, typed_errors
from dreamgym.replay.embedding import Embedder
from dreamgym.replay.encoder import require_same_encoder
from dreamgym.replay.indexing import Indexer
from dreamgym.replay.listing import Selection, list_episodes, newest_id
from dreamgym.replay.partitions import drop_environment, ensure_environment, held_environment, partition_name
from dreamgym.replay.records import (
    EpisodeRecord,
    Filters,
    Found,
    Hit,
    Query,
    Refusal,
    RejectionCount,
    SourceCount,
    Statistics,
    Stored,
)
from dreamgym.replay.reembedding import ReembedProgress, reembed
from dreamgym.replay.search import find_nearest
from dreamgym.replay.selecting import by_ids, draw
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.tables import SCHEMA, EnvironmentRow, EpisodeRow, RejectionRow


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

    async def append(self, offers: Sequence[Offer]) -> Stored:
        """Store whole episodes, those of one environment in one transaction; one that is there already stays as it is.

        What the admission policies refuse is counted. Call `finish_append` after the last of a series.
        """
        by_environment: dict[str, dict[str, Offer]] = {}
        for offer in offers:
            by_environment.setdefault(offer.episode.environment_id, {}).setdefault(offer.episode.episode_id, offer)
        stored = Stored()
        for environment_id, named in by_environment.items():
            stored += await self._append_to(environment_id, named)
        return replace(stored, already_stored=len(offers) - stored.episodes - len(stored.refusals))

    async def count_refusals(self, environment_id: str, refusals: Sequence[Refusal]) -> None:
        """Count episodes that were refused before they reached the store."""
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            await count_refusals(connection, environment_id, refusals)

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
                if await _encoders(connection, environment_id) is None:
                    return [[] for _ in queries]
                raise

    async def sample(self, environment_id: str, count: int, filters: Filters, seed: int) -> list[Found]:
        """At most `count` transitions drawn at random; the same for the same seed, filters and cursor."""
        async with typed_errors(self._deadline_s), self.reading.connect() as connection:
            if await _encoders(connection, environment_id) is None:
                return []
            return await draw(connection, environment_id, count, filters, seed)

    async def get(self, environment_id: str, ids: Sequence[int]) -> list[Found]:
        """The transitions of these ids, in their order; those that are not stored are left out."""
        async with typed_errors(self._deadline_s), self.reading.connect() as connection:
            if await _encoders(connection, environment_id) is None:
                return []
            return await by_ids(connection, environment_id, ids)

    async def reembed(self, environment_id: str) -> AsyncIterator[ReembedProgress]:
        """Embed an environment anew with this service's encoder, batch by batch (see `reembedding`), then index it."""
        self.indexer.forget(environment_id)
        async for progress in reembed(self.engine, environment_id, self.embedder, self._deadline_s):
            yield progress
        await self.finish_append([environment_id])

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
            refused_rows = await connection.execute(
                select(RejectionRow.code, RejectionRow.episodes, RejectionRow.transitions)
                .where(RejectionRow.environment_id == environment_id)
                .order_by(RejectionRow.code)
            )
            rejections = tuple(RejectionCount(*row) for row in refused_rows)
            return Statistics(counts, await newest_id(connection, environment_id), encoder or "", rejections)

    async def delete_episodes(self, environment_id: str, episode_ids: Sequence[str]) -> tuple[int, int]:
        """Remove episodes; answers (transitions, episodes) removed. Unknown ids are ignored: they are gone already."""
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            if await held_environment(connection, environment_id) is None:
                return 0, 0
            rows = await connection.scalars(
                text(
                    f"DELETE FROM {SCHEMA}.{partition_name(environment_id)} WHERE episode_id = ANY(:ids) RETURNING source"
                ),
                {"ids": list(episode_ids)},
            )
            sources = list(rows)
            episodes = await connection.execute(
                delete(EpisodeRow).where(
                    EpisodeRow.environment_id == environment_id, EpisodeRow.episode_id.in_(episode_ids)
                )
            )
            await _count(connection, environment_id, -len(sources), -sources.count(Source.DREAM.value))
            return len(sources), episodes.rowcount

    async def delete_environment(self, environment_id: str) -> tuple[int, int]:
        """Remove everything of an environment, its encoder included; answers (transitions, episodes) removed."""
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            held = await held_environment(connection, environment_id)
            await connection.execute(delete(RejectionRow).where(RejectionRow.environment_id == environment_id))
            if held is None:
                return 0, 0
            episodes = await connection.execute(delete(EpisodeRow).where(EpisodeRow.environment_id == environment_id))
            await drop_environment(connection, environment_id)
        self.indexer.forget(environment_id)
        return held.transitions, episodes.rowcount

    async def _append_to(self, environment_id: str, named: dict[str, Offer]) -> Stored:
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            ours = self.embedder.encoder.name
            await ensure_environment(connection, environment_id, ours)
            if (found := await _encoders(connection, environment_id)) is not None:
                require_same_encoder(environment_id, stored=found.encoder, next_=found.next_encoder, ours=ours)
            known = await connection.scalars(
                select(EpisodeRow.episode_id).where(
                    EpisodeRow.environment_id == environment_id, EpisodeRow.episode_id.in_(list(named))
                )
            )
            there = set(known)
            new = [offer for name, offer in named.items() if name not in there]
            refusals = [refusal for refusal in map(refused, new) if refusal is not None]
            await count_refusals(connection, environment_id, refusals)
        out = {refusal.episode_id for refusal in refusals}
        new = [offer for offer in new if offer.episode.episode_id not in out]
        if not new:
            return Stored(refusals=tuple(refusals))
        vectors = await self.embedder.embed([(t.state, t.action) for one in new for t in one.episode.transitions])
        async with typed_errors(self._deadline_s), self.engine.begin() as connection:
            # Held until the commit: ids then become visible in their order, which makes a cursor a snapshot.
            held = await held_environment(connection, environment_id)
            if held is None:
                raise CapacityError(f"Environment {environment_id!r} was deleted during the append.", remedy="Retry.")
            require_same_encoder(environment_id, stored=held.encoder, next_=held.next_encoder, ours=ours)
            records, vectors, full = within_limits(new, vectors, held.dream_transitions)
            await count_refusals(connection, environment_id, full)
            stored = await insert_episodes(connection, environment_id, records, vectors)
            await _count(connection, environment_id, stored.transitions, stored.dream_transitions)
        return replace(stored, refusals=(*refusals, *full))


async def _encoders(connection: AsyncConnection, environment_id: str) -> Row[str, str] | None:
    """By what an environment was embedded, and by what it is being embedded anew; None if nothing was ever stored."""
    found = await connection.execute(
        select(EnvironmentRow.encoder, EnvironmentRow.next_encoder).where(
            EnvironmentRow.environment_id == environment_id
        )
    )
    return found.one_or_none()


async def _count(connection: AsyncConnection, environment_id: str, transitions: int, dreamed: int) -> None:
    """Add to what the environment holds: transitions, and of these the dreamed ones."""
    await connection.execute(
        update(EnvironmentRow)
        .where(EnvironmentRow.environment_id == environment_id)
        .values(
            transitions=EnvironmentRow.transitions + transitions,
            dream_transitions=EnvironmentRow.dream_transitions + dreamed,
        )
    )
