"""Finds the most similar transitions, in the partition of one environment.

Query plan: below `replay_index_from_transitions` an exact scan (sequential scan, top-k sort), above it the partition's
HNSW index, scanned on until `top_k` rows pass the filters (`hnsw.iterative_scan`, set for every connection).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dreamgym.core.episodes import Source
from dreamgym.replay.embedding import HalfVectors
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.records import Filters, Hit, Query, TransitionRecord
from dreamgym.replay.tables import SCHEMA

_NEAREST = """
SELECT q.number, hit.distance, hit.source, hit.episode_id, e.instruction,
       hit.step, hit.state, hit.action, hit.reasoning, hit.next_state, hit.reward, hit.done, hit.success,
       hit.valid_action, hit.confidence, hit.id
FROM unnest(CAST(CAST(:vectors AS text[]) AS halfvec[]), CAST(:episodes AS text[]), CAST(:tasks AS text[]))
     WITH ORDINALITY AS q (embedding, episode_id, task_id, number)
CROSS JOIN LATERAL (
    SELECT t.*, t.embedding <=> q.embedding AS distance
    FROM {partition} t
    WHERE t.source = ANY(:sources)
      AND (cardinality(CAST(:splits AS text[])) = 0 OR t.split = ANY(:splits))
      AND t.confidence >= :minimum_confidence
      AND t.id <= :cursor
      AND t.episode_id <> q.episode_id
      AND (q.task_id = '' OR t.task_id <> q.task_id)
    ORDER BY t.embedding <=> q.embedding
    LIMIT :top_k
) hit
JOIN {schema}.episodes e ON e.environment_id = :environment_id AND e.episode_id = hit.episode_id
ORDER BY q.number, hit.distance, hit.id
"""
_NO_LIMIT = 2**63 - 1


async def find_nearest(
    connection: AsyncConnection,
    environment_id: str,
    queries: Sequence[Query],
    vectors: HalfVectors,
    top_k: int,
    filters: Filters,
) -> list[list[Hit]]:
    """The `top_k` nearest transitions of each query (row of `vectors`), best first, within the filters."""
    wanted = filters.sources or frozenset(Source)
    observed = wanted - {Source.DREAM}
    dreams_max = math.floor(filters.dream_share_cap * top_k + 1e-9) if Source.DREAM in wanted else 0

    async def nearest(sources: frozenset[Source], limit: int) -> list[list[Hit]]:
        if not sources or limit == 0:
            return [[] for _ in queries]
        parameters = {
            "vectors": [_literal(vector) for vector in vectors],
            "episodes": [query.exclude_episode_id for query in queries],
            "tasks": [query.exclude_task_id for query in queries],
            "sources": [source.value for source in sources],
            "splits": list(filters.splits),
            "minimum_confidence": filters.minimum_confidence,
            "cursor": filters.cursor or _NO_LIMIT,
            "top_k": limit,
            "environment_id": environment_id,
        }
        statement = text(_NEAREST.format(partition=f"{SCHEMA}.{partition_name(environment_id)}", schema=SCHEMA))
        results: list[list[Hit]] = [[] for _ in queries]
        for row in await connection.execute(statement, parameters):
            number, distance, source, episode_id, instruction, *transition = row
            hit = Hit(TransitionRecord(*transition), 1.0 - distance, Source(source), episode_id, instruction)
            results[number - 1].append(hit)
        return results

    if filters.dream_share_cap >= 1.0:
        return await nearest(wanted, top_k)
    real, dreams = await nearest(observed, top_k), await nearest(wanted - observed, dreams_max)
    return [
        mix(real_hits, dream_hits, top_k, filters.dream_share_cap)
        for real_hits, dream_hits in zip(real, dreams, strict=True)
    ]


def mix(observed: Sequence[Hit], dreams: Sequence[Hit], top_k: int, dream_share_cap: float) -> list[Hit]:
    """The best `top_k` of both, of which at most `dream_share_cap` are dreams, best first."""
    chosen = list(dreams)
    while True:
        best = sorted([*observed, *chosen], key=lambda hit: -hit.similarity)[:top_k]
        among = sum(hit.source is Source.DREAM for hit in best)
        if among <= dream_share_cap * len(best) + 1e-9:
            return best
        chosen = chosen[: among - 1]  # the least similar dream among the results makes room


def _literal(vector: Sequence[float]) -> str:
    return "[" + ",".join([f"{value:.4g}" if value else "0" for value in vector]) + "]"
