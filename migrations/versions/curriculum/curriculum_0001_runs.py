"""Runs, their tasks with lineage, iterations and group outcomes of the curriculum."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

revision = "curriculum_0001"
down_revision = None
branch_labels = ("curriculum",)
depends_on = None

SCHEMA = "curriculum"


def column(name: str, kind: sa.types.TypeEngine[Any], *, key: bool = False, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=key, nullable=null)


def of_run() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_id"], [f"{SCHEMA}.runs.run_id"], ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "runs",
        column("run_id", sa.Text(), key=True),
        column("environment_id", sa.Text()),
        column("synthetic_share", sa.Double()),
        column("seed", sa.BigInteger()),
        column("experience_model", sa.Text()),
        column("retire_at", sa.Double()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.CheckConstraint("synthetic_share >= 0 AND synthetic_share <= 1", name="runs_synthetic_share"),
        schema=SCHEMA,
    )
    op.create_table(
        "run_tasks",
        column("run_id", sa.Text(), key=True),
        column("task_id", sa.Text(), key=True),
        column("position", sa.BigInteger()),
        column("parent_id", sa.Text()),
        column("generation", sa.BigInteger()),
        column("created_iteration", sa.BigInteger()),
        column("task", JSONB()),
        of_run(),
        schema=SCHEMA,
    )
    op.create_table(
        "iterations",
        column("run_id", sa.Text(), key=True),
        column("iteration", sa.BigInteger(), key=True),
        column("task_ids", ARRAY(sa.Text())),
        column("synthetic", sa.BigInteger()),
        column("retired", sa.BigInteger()),
        column("generated", sa.BigInteger(), null=True),
        column("rejected", sa.BigInteger(), null=True),
        of_run(),
        schema=SCHEMA,
    )
    op.create_table(
        "outcomes",
        column("run_id", sa.Text(), key=True),
        column("iteration", sa.BigInteger(), key=True),
        column("task_id", sa.Text(), key=True),
        column("rewards", ARRAY(sa.Double())),
        column("failed_episodes", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["run_id", "task_id"],
            [f"{SCHEMA}.run_tasks.run_id", f"{SCHEMA}.run_tasks.task_id"],
            ondelete="CASCADE",
            name="outcomes_task",
        ),
        schema=SCHEMA,
    )


def downgrade() -> None:
    for table in ("outcomes", "iterations", "run_tasks", "runs"):
        op.drop_table(table, schema=SCHEMA)
