"""Environments, episodes and transitions of the replay store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from pgvector.sqlalchemy import HALFVEC
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateSequence, DropSequence

revision = "replay_0001"
down_revision = None
branch_labels = ("replay",)
depends_on = None

SOURCES = "source IN ('seed', 'dream', 'real')"
IDS = sa.Sequence("transition_ids", schema="replay")


def text(name: str, **options: object) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, **options)  # type: ignore[arg-type]


def number(name: str, **options: object) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, **options)  # type: ignore[arg-type]


def flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def real(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=False)


def created_at() -> sa.Column[object]:
    return sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()"))


def upgrade() -> None:
    op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    op.execute(CreateSequence(IDS))
    op.create_table(
        "environments",
        text("environment_id", primary_key=True),
        text("encoder"),
        number("transitions", server_default=sa.text("0")),
        created_at(),
        schema="replay",
    )
    op.create_table(
        "episodes",
        text("environment_id", primary_key=True),
        text("episode_id", primary_key=True),
        number("last_transition_id"),
        number("transitions"),
        text("task_id"),
        text("instruction"),
        text("source"),
        text("split"),
        text("termination"),
        flag("success"),
        text("job_id"),
        text("policy_version"),
        text("model_version"),
        sa.Column("metadata", postgresql.JSONB(), nullable=False),
        created_at(),
        sa.CheckConstraint(SOURCES, name="episodes_source"),
        schema="replay",
    )
    op.create_index(
        "episodes_in_order", "episodes", ["environment_id", "last_transition_id"], unique=True, schema="replay"
    )
    op.create_table(
        "transitions",
        text("environment_id", primary_key=True),
        number("id", primary_key=True, server_default=IDS.next_value(), autoincrement=False),
        # What a search reads of every row comes first: PostgreSQL walks a row from its beginning.
        sa.Column("embedding", HALFVEC(384), nullable=False),
        real("confidence"),
        text("source"),
        text("episode_id"),
        text("task_id"),
        text("split"),
        number("step"),
        text("state"),
        text("action"),
        text("reasoning"),
        text("next_state"),
        real("reward"),
        flag("done"),
        flag("success"),
        flag("valid_action"),
        text("job_id"),
        text("model_version"),
        text("policy_version"),
        created_at(),
        sa.CheckConstraint(SOURCES, name="transitions_source"),
        sa.CheckConstraint("confidence >= 0 AND confidence <= 1", name="transitions_confidence"),
        schema="replay",
        postgresql_partition_by="LIST (environment_id)",
    )
    # Beside long texts an embedding would be moved out of its row, and an exact search would fetch each one anew.
    op.execute("ALTER TABLE replay.transitions ALTER COLUMN embedding SET STORAGE PLAIN")
    op.create_index(
        "transitions_of_episode", "transitions", ["environment_id", "episode_id", "step"], unique=True, schema="replay"
    )
    op.create_index("transitions_of_source", "transitions", ["source", "split"], schema="replay")


def downgrade() -> None:
    op.drop_table("transitions", schema="replay")
    op.drop_table("episodes", schema="replay")
    op.drop_table("environments", schema="replay")
    op.execute(DropSequence(IDS))
