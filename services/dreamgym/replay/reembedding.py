"""Makes an environment's embeddings anew after a change of the encoder.

While it is under way the environment is neither searched nor added to: vectors of two encoders cannot be compared. Every
batch commits with the id up to which it has come, so an interrupted run goes on there; one for yet another encoder starts
over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from dreamgym.core.errors import NotFoundError
from dreamgym.replay.database import typed_errors
from dreamgym.replay.embedding import Embedder, vector_literal
from dreamgym.replay.indexing import drop_indexes
from dreamgym.replay.partitions import held_environment, partition_name
from dreamgym.replay.tables import SCHEMA, EnvironmentRow

BATCH = 500


@dataclass(frozen=True, slots=True)
class ReembedProgress:
    """How many of an environment's transitions have embeddings of `encoder`."""

    done: int
    total: int
    encoder: str


async def reembed(
    engine: AsyncEngine, environment_id: str, embedder: Embedder, deadline_s: float
) -> AsyncIterator[ReembedProgress]:
    """Embed batch by batch; the last progress says that all is done. Raises NotFoundError if nothing is stored."""
    encoder = embedder.encoder.name
    partition = f"{SCHEMA}.{partition_name(environment_id)}"
    async with typed_errors(deadline_s), engine.begin() as connection:
        row = await held_environment(connection, environment_id)
        if row is None:
            raise _nothing(environment_id)
        total = row.transitions
        finished = row.encoder == encoder and not row.next_encoder
        position = row.reembedded_to if row.next_encoder == encoder else 0
        done = total
        if not finished:
            await _set(connection, environment_id, next_encoder=encoder, reembedded_to=position)
            # Updating an index row by row costs far more than building it again at the end.
            await drop_indexes(connection, partition_name(environment_id))
            done = await connection.scalar(
                text(f"SELECT count(*) FROM {partition} WHERE id <= :position"), {"position": position}
            )
    yield ReembedProgress(done, total, encoder)
    while not finished:
        async with typed_errors(deadline_s), engine.connect() as connection:
            found = await connection.execute(
                text(f"SELECT id, state, action FROM {partition} WHERE id > :position ORDER BY id LIMIT :batch"),
                {"position": position, "batch": BATCH},
            )
            rows = found.all()
        vectors = await embedder.embed([(row.state, row.action) for row in rows])
        async with typed_errors(deadline_s), engine.begin() as connection:
            if await held_environment(connection, environment_id) is None:  # deleted meanwhile
                raise _nothing(environment_id)
            if not rows:
                await _set(connection, environment_id, encoder=encoder, next_encoder="", reembedded_to=0)
                finished = True
                continue
            await connection.execute(
                text(
                    f"UPDATE {partition} t SET embedding = CAST(new.embedding AS halfvec) FROM"
                    " unnest(CAST(:ids AS bigint[]), CAST(:vectors AS text[])) AS new (id, embedding)"
                    " WHERE t.environment_id = :environment_id AND t.id = new.id"
                ),
                {
                    "ids": [row.id for row in rows],
                    "vectors": [vector_literal(vector) for vector in vectors],
                    "environment_id": environment_id,
                },
            )
            position = rows[-1].id
            await _set(connection, environment_id, reembedded_to=position)
        done += len(rows)
        yield ReembedProgress(done, total, encoder)


def _nothing(environment_id: str) -> NotFoundError:
    return NotFoundError(
        f"Nothing is stored for environment {environment_id!r}.", remedy="There is nothing to embed anew."
    )


async def _set(connection: AsyncConnection, environment_id: str, **values: object) -> None:
    await connection.execute(
        update(EnvironmentRow).where(EnvironmentRow.environment_id == environment_id).values(**values)
    )
