"""An environment whose embeddings are being made anew, and how far that has come."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "replay_0003"
down_revision = "replay_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "environments",
        sa.Column("next_encoder", sa.Text(), nullable=False, server_default=sa.text("''")),
        schema="replay",
    )
    op.add_column(
        "environments",
        sa.Column("reembedded_to", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        schema="replay",
    )


def downgrade() -> None:
    op.drop_column("environments", "reembedded_to", schema="replay")
    op.drop_column("environments", "next_encoder", schema="replay")
