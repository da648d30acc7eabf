"""Finds the most similar transitions, in the partition of one environment.

Query plan: observed transitions and dreams are two searches, so that neither has to be scanned past to find the other.
In a small environment both are exact scans. A large one has a partial HNSW index for each (see `indexing`), scanned on
until enough rows pass the filters, `hnsw.max_scan_tuples` at most. What an index did not find in full, because the
filters leave little, an exact scan of the rest of the filters' rows finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from dreamgym.core.episodes import Source
from dreamgym.replay.database import SCANNED_MAX
from dreamgym.replay.embedding import HalfVectors, vector_literal
from dreamgym.replay.encoder import require_same_encoder
from dreamgym.replay.indexing import DREAMED, OBSERVED
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.records import Filters, Hit, Query, TransitionRecord
from dreamgym.replay.tables import SCHEMA

# One round trip. `near` is materialized, so that the nearest are sought once per query whatever the planner believes
# about the tables joined; without any hit there is still one row, with the facts about the environment.
_NEAREST = """
WITH near AS MATERIALIZED (
    SELECT q.number, found.id, found.distance
    FROM unnest(CAST(CAST(:vectors AS text[]) AS halfvec[]), CAST(:episodes AS text[]), CAST(:tasks AS text[]))
         WITH ORDINALITY AS q (embedding, episode_id, task_id, number)
    CROSS JOIN LATERAL ({kinds}) found
), facts AS MATERIALIZED (
    SELECT encoder, next_encoder, transitions > {scanned} AS many_observed,
           EXISTS (SELECT FROM {partition} WHERE {dreamed} OFFSET {scanned}) AS many_dreams
    FROM {schema}.environments WHERE environment_id = :environment_id
)
SELECT facts.encoder, facts.next_encoder, facts.many_observed, facts.many_dreams,
       near.number, near.distance, t.source, t.episode_id, e.instruction,
       t.step, t.state, t.action, t.reasoning, t.next_state, t.reward, t.done, t.success, t.valid_action, t.confidence,
       t.id
FROM facts
LEFT JOIN (
    near
    JOIN {partition} t ON t.environment_id = :environment_id AND t.id = near.id
    JOIN {schema}.episodes e ON e.environment_id = :environment_id AND e.episode_id = t.episode_id
) ON true
ORDER BY near.number, near.distance, near.id
"""
_KIND = """(
    SELECT id, embedding <=> q.embedding AS distance FROM {partition} WHERE {conditions} ORDER BY {order} LIMIT {limit}
)"""
_BY_INDEX = "embedding <=> q.embedding"
_EXACT = "(embedding <=> q.embedding) + 0.0"  # an order that no index has


async def find_nearest(
    connection: AsyncConnection,
    environment_id: str,
    encoder: str,
    queries: Sequence[Query],
    vectors: HalfVectors,
    top_k: int,
    filters: Filters,
) -> list[list[Hit]]:
    """The `top_k` nearest transitions of each query (row of `vectors`), best first, within the filters.

    ConflictError if the data was embedded by another encoder than `encoder`.
    """
    wanted = filters.sources or frozenset(Source)
    dreams_max = math.floor(filters.dream_share_cap * top_k + 1e-9) if Source.DREAM in wanted else 0
    limits = {
        sources: limit
        for sources, limit in ((wanted - {Source.DREAM}, top_k), (wanted & {Source.DREAM}, dreams_max))
        if sources and limit
    }
    results: list[list[Hit]] = [[] for _ in queries]
    waiting = list(range(len(queries)))
    for order in (_BY_INDEX, _EXACT):
        if not waiting or not limits:
            break
        statement, parameters = _statement(
            environment_id, [queries[number] for number in waiting], filters, limits, order
        )
        parameters["vectors"] = [vector_literal(vectors[number], digits=4) for number in waiting]
        rows = (await connection.execute(text(statement), parameters)).all()
        if not rows:
            break  # nothing was ever stored
        require_same_encoder(environment_id, stored=rows[0].encoder, next_=rows[0].next_encoder, ours=encoder)
        for number in waiting:
            results[number] = []
        for row in rows:
            if row.number is not None:
                results[waiting[row.number - 1]].append(_hit(row))
        # An index scan that ended early has passed over many rows; fewer than those it has seen all.
        cut = [
            sources for sources in limits if (rows[0].many_dreams if Source.DREAM in sources else rows[0].many_observed)
        ]
        waiting = [
            number
            for number in waiting
            if any(sum(hit.source in sources for hit in results[number]) < limits[sources] for sources in cut)
        ]
    return [
        mix(
            [hit for hit in hits if hit.source is not Source.DREAM],
            [hit for hit in hits if hit.source is Source.DREAM],
            top_k,
            filters.dream_share_cap,
        )
        for hits in results
    ]


def _statement(
    environment_id: str,
    queries: Sequence[Query],
    filters: Filters,
    limits: Mapping[frozenset[Source], int],
    order: str,
) -> tuple[str, dict[str, Any]]:
    partition = f"{SCHEMA}.{partition_name(environment_id)}"
    conditions, parameters = conditions_of(queries, filters)
    kinds = []
    for sources, limit in limits.items():
        # As constants, because the planner must see that they imply the predicate of a partial index.
        kind = [OBSERVED if Source.DREAM not in sources else DREAMED]
        if len(sources) == 1:
            kind.append(f"source = '{next(iter(sources)).value}'")
        kinds.append(
            _KIND.format(partition=partition, conditions=" AND ".join(kind + conditions), order=order, limit=limit)
        )
    parameters |= {
        "episodes": [query.exclude_episode_id for query in queries],
        "tasks": [query.exclude_task_id for query in queries],
        "environment_id": environment_id,
    }
    return (
        _NEAREST.format(
            partition=partition, schema=SCHEMA, dreamed=DREAMED, scanned=SCANNED_MAX, kinds=" UNION ALL ".join(kinds)
        ),
        parameters,
    )


def conditions_of(queries: Sequence[Query], filters: Filters) -> tuple[list[str], dict[str, Any]]:
    """The SQL of the filters that are in force, and its parameters: an exact scan pays for each one at every row."""
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
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
    return conditions, parameters


def _hit(row: Row[Any]) -> Hit:
    transition = TransitionRecord(*list(row)[9:])
    return Hit(transition, 1.0 - row.distance, Source(row.source), row.episode_id, row.instruction)


def mix(observed: Sequence[Hit], dreams: Sequence[Hit], top_k: int, dream_share_cap: float) -> list[Hit]:
    """The best `top_k` of both, of which at most `dream_share_cap` are dreams, best first."""
    chosen = list(dreams)
    while True:
        best = sorted([*observed, *chosen], key=lambda hit: -hit.similarity)[:top_k]
        among = sum(hit.source is Source.DREAM for hit in best)
        if among <= dream_share_cap * len(best) + 1e-9:
            return best
        chosen = chosen[: among - 1]  # the least similar dream among the results makes room
