"""Draws transitions at random, the same ones for the same seed, filters and cursor."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from dreamgym.core.episodes import Source
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.records import Drawn, Filters, TransitionRecord
from dreamgym.replay.search import conditions_of
from dreamgym.replay.tables import SCHEMA

# The order of a hash of the id is random, needs no state and stays as it is when rows are added or removed elsewhere.
_DRAW = """
SELECT t.source, t.episode_id, e.instruction,
       t.step, t.state, t.action, t.reasoning, t.next_state, t.reward, t.done, t.success, t.valid_action, t.confidence,
       t.id
FROM (
    SELECT id FROM {partition} WHERE {conditions} ORDER BY hashint8extended(id, :seed), id LIMIT :count
) drawn
JOIN {partition} t ON t.environment_id = :environment_id AND t.id = drawn.id
JOIN {schema}.episodes e ON e.environment_id = :environment_id AND e.episode_id = t.episode_id
ORDER BY hashint8extended(t.id, :seed), t.id
"""


async def draw(
    connection: AsyncConnection, environment_id: str, count: int, filters: Filters, seed: int
) -> list[Drawn]:
    """At most `count` transitions, drawn without replacement from those that pass the filters."""
    conditions, parameters = conditions_of((), filters)
    if filters.sources:
        conditions.append("source = ANY(:sources)")
        parameters["sources"] = [source.value for source in filters.sources]
    statement = _DRAW.format(
        partition=f"{SCHEMA}.{partition_name(environment_id)}",
        schema=SCHEMA,
        conditions=" AND ".join(conditions) or "true",
    )
    rows = await connection.execute(
        text(statement), parameters | {"environment_id": environment_id, "count": count, "seed": seed}
    )
    return [Drawn(TransitionRecord(*list(row)[3:]), Source(row[0]), row[1], row[2]) for row in rows]
