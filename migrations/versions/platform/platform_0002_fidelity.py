"""What was measured of an experience model stands beside it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "platform_0002"
down_revision = "platform_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "models", sa.Column("fidelity", postgresql.JSONB(none_as_null=True), nullable=True), schema="platform"
    )


def downgrade() -> None:
    op.drop_column("models", "fidelity", schema="platform")
