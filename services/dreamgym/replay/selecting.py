"""Single transitions, by id or drawn at random (the same ones for the same seed, filters and cursor)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dreamgym.core.episodes import Source
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.records import Filters, Found, TransitionRecord
from dreamgym.replay.search import conditions_of
from dreamgym.replay.tables import SCHEMA

_FOUND = """
SELECT t.source, t.episode_id, e.instruction,
       t.step, t.state, t.action, t.reasoning, t.next_state, t.reward, t.done, t.success, t.valid_action, t.confidence,
       t.id
FROM ({ids}) chosen
JOIN {partition} t ON t.environment_id = :environment_id AND t.id = chosen.id
JOIN {schema}.episodes e ON e.environment_id = :environment_id AND e.episode_id = t.episode_id
ORDER BY chosen.place, t.id
"""
_BY_ID = "SELECT id, place FROM unnest(CAST(:ids AS bigint[])) WITH ORDINALITY AS given (id, place)"
# The order of a hash of the id is random, needs no state and stays as it is when rows are added or removed elsewhere.
_DRAWN = """
SELECT id, hashint8extended(id, :seed) AS place FROM {partition} WHERE {conditions} ORDER BY place, id LIMIT :count
"""


async def draw(
    connection: AsyncConnection, environment_id: str, count: int, filters: Filters, seed: int
) -> list[Found]:
    """At most `count` transitions, drawn without replacement from those that pass the filters."""
    conditions, parameters = conditions_of((), filters)
    if filters.sources:
        conditions.append("source = ANY(:sources)")
        parameters["sources"] = [source.value for source in filters.sources]
    drawn = _DRAWN.format(partition=_partition(environment_id), conditions=" AND ".join(conditions) or "true")
    return await _found(connection, environment_id, drawn, {**parameters, "count": count, "seed": seed})


async def by_ids(connection: AsyncConnection, environment_id: str, ids: Sequence[int]) -> list[Found]:
    """The transitions of these ids, in their order; those that are not stored are left out."""
    return await _found(connection, environment_id, _BY_ID, {"ids": list(ids)})


async def _found(
    connection: AsyncConnection, environment_id: str, ids: str, parameters: Mapping[str, Any]
) -> list[Found]:
    statement = _FOUND.format(ids=ids, partition=_partition(environment_id), schema=SCHEMA)
    rows = await connection.execute(text(statement), {**parameters, "environment_id": environment_id})
    return [Found(TransitionRecord(*list(row)[3:]), Source(row[0]), row[1], row[2]) for row in rows]


def _partition(environment_id: str) -> str:
    return f"{SCHEMA}.{partition_name(environment_id)}"
