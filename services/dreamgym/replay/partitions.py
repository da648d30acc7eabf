"""One partition of `replay.transitions` per environment, made at its first append."""

from __future__ import annotations

import hashlib
from typing import Any

from psycopg import sql
from sqlalchemy import Row, delete, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from dreamgym.replay.tables import SCHEMA, EnvironmentRow


def partition_name(environment_id: str) -> str:
    """The table of an environment's transitions: a hash, so that any id gives a valid name without quoting."""
    return "p_" + hashlib.sha256(environment_id.encode()).hexdigest()[:32]


async def ensure_environment(connection: AsyncConnection, environment_id: str, encoder: str) -> None:
    """Make the environment's row and partition unless they are there. Commit soon: it holds a lock on all partitions."""
    made = await connection.execute(
        insert(EnvironmentRow)
        .values(environment_id=environment_id, encoder=encoder)
        .on_conflict_do_nothing()
        .returning(EnvironmentRow.environment_id)
    )
    if made.first() is None:
        return  # a concurrent first append waited above until the other one had committed
    create = sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES IN ({})").format(
        sql.Identifier(SCHEMA, partition_name(environment_id)),
        sql.Identifier(SCHEMA, "transitions"),
        sql.Literal(environment_id),
    )
    driver = (await connection.get_raw_connection()).driver_connection
    assert driver is not None
    await driver.execute(create)


async def held_environment(connection: AsyncConnection, environment_id: str) -> Row[Any] | None:
    """The environment's row, all columns, held until the transaction ends; None if nothing was ever stored."""
    found = await connection.execute(
        select(EnvironmentRow.__table__).where(EnvironmentRow.environment_id == environment_id).with_for_update()
    )
    return found.one_or_none()


async def drop_environment(connection: AsyncConnection, environment_id: str) -> None:
    """Drop the environment's partition and row."""
    await connection.execute(text(f"DROP TABLE IF EXISTS {SCHEMA}.{partition_name(environment_id)}"))
    await connection.execute(delete(EnvironmentRow).where(EnvironmentRow.environment_id == environment_id))
