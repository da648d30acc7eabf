"""Budgets of real transitions, sessions on real environments, the audit of every real action."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "bridge_0001"
down_revision = None
branch_labels = ("bridge",)
depends_on = None

SCHEMA = "bridge"
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "budgets",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("budget_id", sa.Text, primary_key=True),
        sa.Column("transition_limit", sa.BigInteger, nullable=False),
        sa.Column("transitions_used", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("updated_at", MOMENT, nullable=False, server_default=sa.func.now()),
        # The last wall: even a wrong statement cannot overspend.
        sa.CheckConstraint(
            "transitions_used >= 0 AND transitions_used <= transition_limit", name="budgets_not_overspent"
        ),
        schema=SCHEMA,
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("budget_id", sa.Text, nullable=False),
        sa.Column("environment_id", sa.Text, nullable=False),
        sa.Column("adapter", sa.Text, nullable=False),
        sa.Column("episode_id", sa.Text, nullable=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("policy_version", sa.Text, nullable=False),
        sa.Column("worker_pid", sa.Integer, nullable=False),
        sa.Column("started_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("last_seen_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("ended_at", MOMENT),
        sa.Column("termination", sa.Text),
        schema=SCHEMA,
    )
    op.create_index("sessions_by_job", "sessions", ["job_id"], schema=SCHEMA)
    op.create_index("sessions_by_episode", "sessions", ["episode_id"], schema=SCHEMA)
    op.create_index(
        "sessions_live", "sessions", ["last_seen_at"], schema=SCHEMA, postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
        sa.Column("session_id", sa.BigInteger, sa.ForeignKey(f"{SCHEMA}.sessions.id"), nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("budget_id", sa.Text, nullable=False),
        sa.Column("environment_id", sa.Text, nullable=False),
        sa.Column("adapter", sa.Text, nullable=False),
        sa.Column("episode_id", sa.Text, nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("disposition", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("policy_version", sa.Text, nullable=False),
        sa.Column("state_excerpt", sa.Text, nullable=False),
        sa.Column("state_sha256", sa.Text, nullable=False),
        sa.Column("asked_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("answered_at", MOMENT),
        sa.Column("next_state_excerpt", sa.Text),
        sa.Column("next_state_sha256", sa.Text),
        sa.Column("reward", sa.Float),
        sa.Column("done", sa.Boolean),
        sa.Column("success", sa.Boolean),
        sa.Column("valid_action", sa.Boolean),
        sa.Column("error", sa.Text),
        sa.UniqueConstraint("session_id", "step", name="audit_one_row_per_step"),
        sa.CheckConstraint("disposition IN ('sent', 'denied', 'dry_run')", name="audit_disposition"),
        schema=SCHEMA,
    )
    op.create_index("audit_by_job", "audit", ["job_id", "id"], schema=SCHEMA)
    op.create_index("audit_by_episode", "audit", ["episode_id", "step"], schema=SCHEMA)


def downgrade() -> None:
    op.drop_table("audit", schema=SCHEMA)
    op.drop_table("sessions", schema=SCHEMA)
    op.drop_table("budgets", schema=SCHEMA)
