"""Finds the most similar transitions, in the partition of one environment.

Query plan: observed transitions and dreams are two searches, so that neither has to be scanned past to find the other.
In a small environment both are exact scans. A large one has a partial HNSW index for each (see `indexing`), scanned on
until enough rows pass the filters, `hnsw.max_scan_tuples` at most. What an index did not find in full, because the
filters leave little, an exact scan of the rest of the filters' rows finds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dreamgym.core.episodes import Source
from dreamgym.replay.embedding import HalfVectors
from dreamgym.replay.indexing import DREAMED, OBSERVED
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.records import Filters, Hit, Query, TransitionRecord
from dreamgym.replay.tables import SCHEMA

# Materialized, so that the nearest are sought once per query whatever the planner believes about the tables joined.
_NEAREST = """
WITH near AS MATERIALIZED (
    SELECT q.number, found.id, found.distance
    FROM unnest(CAST(CAST(:vectors AS text[]) AS halfvec[]), CAST(:episodes AS text[]), CAST(:tasks AS text[]))
         WITH ORDINALITY AS q (embedding, episode_id, task_id, number)
    CROSS JOIN LATERAL (
        SELECT id, embedding <=> q.embedding AS distance
        FROM {partition}
        WHERE {conditions}
        ORDER BY {order}
        LIMIT :top_k
    ) found
)
SELECT near.number, near.distance, t.source, t.episode_id, e.instruction,
       t.step, t.state, t.action, t.reasoning, t.next_state, t.reward, t.done, t.success, t.valid_action, t.confidence,
       t.id
FROM near
JOIN {partition} t ON t.environment_id = :environment_id AND t.id = near.id
JOIN {schema}.episodes e ON e.environment_id = :environment_id AND e.episode_id = t.episode_id
ORDER BY near.number, near.distance, near.id
"""
_BY_INDEX = "embedding <=> q.embedding"
_EXACT = "(embedding <=> q.embedding) + 0.0"  # an order that no index has


async def find_nearest(
    connection: AsyncConnection,
    environment_id: str,
    queries: Sequence[Query],
    vectors: HalfVectors,
    top_k: int,
    filters: Filters,
) -> list[list[Hit]]:
    """The `top_k` nearest transitions of each query (row of `vectors`), best first, within the filters."""
    search = _Search(connection, environment_id, queries, vectors, filters)
    wanted = filters.sources or frozenset(Source)
    dreams_max = math.floor(filters.dream_share_cap * top_k + 1e-9) if Source.DREAM in wanted else 0
    observed = await search.nearest(wanted - {Source.DREAM}, top_k)
    dreams = await search.nearest(wanted & {Source.DREAM}, dreams_max)
    return [mix(*both, top_k, filters.dream_share_cap) for both in zip(observed, dreams, strict=True)]


def mix(observed: Sequence[Hit], dreams: Sequence[Hit], top_k: int, dream_share_cap: float) -> list[Hit]:
    """The best `top_k` of both, of which at most `dream_share_cap` are dreams, best first."""
    chosen = list(dreams)
    while True:
        best = sorted([*observed, *chosen], key=lambda hit: -hit.similarity)[:top_k]
        among = sum(hit.source is Source.DREAM for hit in best)
        if among <= dream_share_cap * len(best) + 1e-9:
            return best
        chosen = chosen[: among - 1]  # the least similar dream among the results makes room


@dataclass(frozen=True, slots=True)
class _Search:
    connection: AsyncConnection
    environment_id: str
    queries: Sequence[Query]
    vectors: HalfVectors
    filters: Filters

    async def nearest(self, sources: frozenset[Source], limit: int) -> list[list[Hit]]:
        """The `limit` nearest of each query among `sources`, which are either observed ones or dreams."""
        results: list[list[Hit]] = [[] for _ in self.queries]
        if not sources or limit == 0:
            return results
        waiting = list(range(len(self.queries)))
        for order in (_BY_INDEX, _EXACT):
            for number in waiting:
                results[number] = []
            for number, hit in await self._select(waiting, sources, limit, order):
                results[number].append(hit)
            waiting = [number for number in waiting if len(results[number]) < limit]
            if not waiting:
                break
        return results

    async def _select(
        self, numbers: Sequence[int], sources: frozenset[Source], limit: int, order: str
    ) -> list[tuple[int, Hit]]:
        queries = [self.queries[number] for number in numbers]
        conditions, parameters = _conditions(queries, self.filters, sources)
        parameters |= {
            "vectors": [_literal(self.vectors[number]) for number in numbers],
            "episodes": [query.exclude_episode_id for query in queries],
            "tasks": [query.exclude_task_id for query in queries],
            "top_k": limit,
            "environment_id": self.environment_id,
        }
        statement = _NEAREST.format(
            partition=f"{SCHEMA}.{partition_name(self.environment_id)}",
            schema=SCHEMA,
            conditions=conditions,
            order=order,
        )
        found = []
        for row in await self.connection.execute(text(statement), parameters):
            place, distance, source, episode_id, instruction, *transition = row
            hit = Hit(TransitionRecord(*transition), 1.0 - distance, Source(source), episode_id, instruction)
            found.append((numbers[place - 1], hit))
        return found


def _conditions(queries: Sequence[Query], filters: Filters, sources: frozenset[Source]) -> tuple[str, dict[str, Any]]:
    """The SQL of the filters that are in force, and its parameters: an exact scan pays for each one at every row."""
    # As constants, because the planner must see that they imply the predicate of a partial index.
    conditions = [OBSERVED if Source.DREAM not in sources else DREAMED]
    parameters: dict[str, Any] = {}
    if len(sources) == 1:
        conditions.append("source = :source")
        parameters["source"] = next(iter(sources)).value
    if filters.splits:
        conditions.append("split = ANY(:splits)")
        parameters["splits"] = list(filters.splits)
    if filters.minimum_confidence > 0.0:
        conditions.append("confidence >= :minimum_confidence")
        parameters["minimum_confidence"] = filters.minimum_confidence
    if filters.cursor:
        conditions.append("id <= :cursor")
        parameters["cursor"] = filters.cursor
    if any(query.exclude_episode_id for query in queries):
        conditions.append("episode_id <> q.episode_id")  # no stored id is empty
    if any(query.exclude_task_id for query in queries):
        conditions.append("(q.task_id = '' OR task_id <> q.task_id)")
    return " AND ".join(conditions), parameters


def _literal(vector: Sequence[float]) -> str:
    return "[" + ",".join([f"{value:.4g}" if value else "0" for value in vector]) + "]"
