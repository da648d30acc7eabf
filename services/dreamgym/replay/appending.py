"""Writes episodes and their transitions: the transitions through binary COPY."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from psycopg import sql
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from dreamgym.core.episodes import Source
from dreamgym.replay.embedding import HalfVectors
from dreamgym.replay.encoder import DIMENSIONS
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.records import EpisodeRecord, Stored, TransitionRecord
from dreamgym.replay.tables import SCHEMA, EpisodeRow

_COPIED = (
    *("environment_id", "id", "episode_id", "step", "source", "split", "task_id"),
    *("state", "action", "reasoning", "next_state", "reward", "done", "success", "valid_action", "confidence"),
    *("job_id", "model_version", "policy_version", "embedding"),
)
# The embedding's binary form is written here, and bytes are sent as they are: pgvector's types need not be looked up.
_COPIED_TYPES = (
    *("text", "int8", "text", "int8", "text", "text", "text"),
    *("text", "text", "text", "text", "float8", "bool", "bool", "bool", "float8"),
    *("text", "text", "text", "bytea"),
)
_HALFVEC_HEADER = struct.pack(">HH", DIMENSIONS, 0)


async def insert_episodes(
    connection: AsyncConnection, environment_id: str, records: Sequence[EpisodeRecord], vectors: HalfVectors
) -> Stored:
    """Insert `records` that are not there yet, with one row of `vectors` for each of their transitions in order.

    The caller holds the environment's row, so that ids are given in the order of commits.
    """
    total = sum(len(record.transitions) for record in records)
    numbers = await connection.scalars(
        text(f"SELECT nextval('{SCHEMA}.transition_ids') FROM generate_series(1, :total)"), {"total": total}
    )
    ids = list(numbers)
    rows, end = [], 0
    for record in records:
        end += len(record.transitions)
        rows.append(_episode_values(record, ids[end - 1]))
    inserted = await connection.scalars(
        insert(EpisodeRow).on_conflict_do_nothing().returning(EpisodeRow.episode_id), rows
    )
    new = set(inserted)
    driver = (await connection.get_raw_connection()).driver_connection
    assert driver is not None
    copy_into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        sql.Identifier(SCHEMA, partition_name(environment_id)), sql.SQL(", ").join(map(sql.Identifier, _COPIED))
    )
    big_endian = vectors.astype(">f2")
    position, stored, dreamed = 0, 0, 0
    async with driver.cursor() as cursor, cursor.copy(copy_into) as copy:
        copy.set_types(_COPIED_TYPES)
        for record in records:
            for transition in record.transitions:
                if record.episode_id in new:
                    embedding = _HALFVEC_HEADER + big_endian[position].tobytes()
                    await copy.write_row(_copied_values(record, transition, ids[position], embedding))
                    stored += 1
                    dreamed += record.source is Source.DREAM
                position += 1
    return Stored(len(new), stored, dream_transitions=dreamed)


def _episode_values(record: EpisodeRecord, last_transition_id: int) -> dict[str, object]:
    return {
        "environment_id": record.environment_id,
        "episode_id": record.episode_id,
        "last_transition_id": last_transition_id,
        "transitions": len(record.transitions),
        "task_id": record.task_id,
        "instruction": record.instruction,
        "source": record.source.value,
        "split": record.split,
        "termination": record.termination,
        "success": record.success,
        "job_id": record.job_id,
        "policy_version": record.policy_version,
        "model_version": record.model_version,
        "metadata": dict(record.metadata),
    }


def _copied_values(
    record: EpisodeRecord, transition: TransitionRecord, id: int, embedding: bytes
) -> tuple[object, ...]:
    t = transition
    return (
        *(record.environment_id, id, record.episode_id, t.step, record.source.value, record.split, record.task_id),
        *(t.state, t.action, t.reasoning, t.next_state, t.reward, t.done, t.success, t.valid_action, t.confidence),
        *(record.job_id, record.model_version, record.policy_version, embedding),
    )
