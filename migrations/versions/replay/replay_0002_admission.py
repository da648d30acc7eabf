"""Which dream episodes an environment holds, and which it refused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "replay_0002"
down_revision = "replay_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "environments",
        sa.Column("dream_transitions", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        schema="replay",
    )
    op.execute(
        "UPDATE replay.environments SET dream_transitions = held.transitions FROM (SELECT environment_id,"
        " sum(transitions) AS transitions FROM replay.episodes WHERE source = 'dream' GROUP BY environment_id) held"
        " WHERE held.environment_id = environments.environment_id"
    )
    op.create_table(
        "rejections",
        sa.Column("environment_id", sa.Text(), primary_key=True),
        sa.Column("code", sa.Text(), primary_key=True),
        sa.Column("episodes", sa.BigInteger(), nullable=False),
        sa.Column("transitions", sa.BigInteger(), nullable=False),
        schema="replay",
    )


def downgrade() -> None:
    op.drop_table("rejections", schema="replay")
    op.drop_column("environments", "dream_transitions", schema="replay")
