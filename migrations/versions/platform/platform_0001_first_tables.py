"""First tables of schema platform: tenants, keys, environments, tasks, jobs and models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "platform_0001"
down_revision = None
branch_labels = ("platform",)
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("tenants_pkey")),
        sa.UniqueConstraint("name", name=op.f("tenants_name_key")),
        schema="platform",
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "cardinality(scopes) > 0 AND scopes <@ ARRAY['admin', 'write', 'read']", name=op.f("api_keys_scopes_check")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["platform.tenants.id"], name=op.f("api_keys_tenant_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("api_keys_pkey")),
        sa.UniqueConstraint("sha256", name=op.f("api_keys_sha256_key")),
        schema="platform",
    )
    op.create_index(op.f("api_keys_tenant_id_idx"), "api_keys", ["tenant_id"], unique=False, schema="platform")
    op.create_table(
        "environments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("action_format", sa.Text(), nullable=False),
        sa.Column("adapter", sa.Text(), nullable=False),
        sa.Column("max_steps", sa.Integer(), nullable=False),
        sa.Column(
            "settings",
            postgresql.JSONB(none_as_null=True, astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["platform.tenants.id"], name=op.f("environments_tenant_id_fkey"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("environments_pkey")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("environments_tenant_id_name_key")),
        schema="platform",
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("environment_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker", sa.Text(), server_default="", nullable=False),
        sa.Column("celery_task_id", sa.Text(), server_default="", nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("result", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("error", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("dispatch_due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dispatches", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("dispatch_error", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state IN ('running', 'pausing', 'cancelling')) = (lease_expires_at IS NOT NULL)",
            name=op.f("jobs_lease_check"),
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'pausing', 'paused', 'cancelling', 'succeeded', 'failed', 'cancelled')",
            name=op.f("jobs_state_check"),
        ),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["platform.environments.id"], name=op.f("jobs_environment_id_fkey"), ondelete="RESTRICT"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["platform.tenants.id"], name=op.f("jobs_tenant_id_fkey"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("jobs_pkey")),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("jobs_tenant_id_idempotency_key_key")),
        schema="platform",
    )
    op.create_index(op.f("jobs_environment_id_idx"), "jobs", ["environment_id"], unique=False, schema="platform")
    op.create_index("jobs_tenant_id_id_idx", "jobs", ["tenant_id", "id"], unique=False, schema="platform")
    op.create_index(
        "jobs_unfinished_idx",
        "jobs",
        ["state"],
        unique=False,
        schema="platform",
        postgresql_where=sa.text("state IN ('queued', 'running', 'pausing', 'cancelling')"),
    )
    op.create_table(
        "tasks",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("environment_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("instruction", sa.Text(), nullable=False),
        sa.Column("initial_state", sa.Text(), nullable=False),
        sa.Column("criterion", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column(
            "metadata",
            postgresql.JSONB(none_as_null=True, astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["platform.environments.id"], name=op.f("tasks_environment_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("tasks_pkey")),
        sa.UniqueConstraint("environment_id", "id", name=op.f("tasks_environment_id_id_key")),
        schema="platform",
    )
    op.create_index(
        op.f("tasks_environment_id_number_idx"), "tasks", ["environment_id", "number"], unique=False, schema="platform"
    )
    op.create_table(
        "job_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["platform.jobs.id"], name=op.f("job_events_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("job_events_pkey")),
        schema="platform",
    )
    op.create_index(op.f("job_events_job_id_id_idx"), "job_events", ["job_id", "id"], unique=False, schema="platform")
    op.create_table(
        "job_metrics",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["platform.jobs.id"], name=op.f("job_metrics_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("job_metrics_pkey")),
        sa.UniqueConstraint("job_id", "stage", "name", "step", name=op.f("job_metrics_job_id_stage_name_step_key")),
        schema="platform",
    )
    op.create_index(op.f("job_metrics_job_id_id_idx"), "job_metrics", ["job_id", "id"], unique=False, schema="platform")
    op.create_table(
        "job_stages",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("result", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'running', 'succeeded', 'failed', 'skipped')", name=op.f("job_stages_state_check")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["platform.jobs.id"], name=op.f("job_stages_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "index", name=op.f("job_stages_pkey")),
        schema="platform",
    )
    op.create_table(
        "models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("environment_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("manifest", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("role IN ('policy', 'experience')", name=op.f("models_role_check")),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["platform.environments.id"],
            name=op.f("models_environment_id_fkey"),
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(["job_id"], ["platform.jobs.id"], name=op.f("models_job_id_fkey"), ondelete="RESTRICT"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["platform.tenants.id"], name=op.f("models_tenant_id_fkey"), ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("models_pkey")),
        sa.UniqueConstraint("version", name=op.f("models_version_key")),
        schema="platform",
    )
    op.create_index(
        op.f("models_environment_id_role_id_idx"),
        "models",
        ["environment_id", "role", "id"],
        unique=False,
        schema="platform",
    )
    op.create_index(op.f("models_job_id_idx"), "models", ["job_id"], unique=False, schema="platform")


def downgrade() -> None:
    op.drop_index(op.f("models_job_id_idx"), table_name="models", schema="platform")
    op.drop_index(op.f("models_environment_id_role_id_idx"), table_name="models", schema="platform")
    op.drop_table("models", schema="platform")
    op.drop_table("job_stages", schema="platform")
    op.drop_index(op.f("job_metrics_job_id_id_idx"), table_name="job_metrics", schema="platform")
    op.drop_table("job_metrics", schema="platform")
    op.drop_index(op.f("job_events_job_id_id_idx"), table_name="job_events", schema="platform")
    op.drop_table("job_events", schema="platform")
    op.drop_index(op.f("tasks_environment_id_number_idx"), table_name="tasks", schema="platform")
    op.drop_table("tasks", schema="platform")
    op.drop_index(
        "jobs_unfinished_idx",
        table_name="jobs",
        schema="platform",
        postgresql_where=sa.text("state IN ('queued', 'running', 'pausing', 'cancelling')"),
    )
    op.drop_index("jobs_tenant_id_id_idx", table_name="jobs", schema="platform")
    op.drop_index(op.f("jobs_environment_id_idx"), table_name="jobs", schema="platform")
    op.drop_table("jobs", schema="platform")
    op.drop_table("environments", schema="platform")
    op.drop_index(op.f("api_keys_tenant_id_idx"), table_name="api_keys", schema="platform")
    op.drop_table("api_keys", schema="platform")
    op.drop_table("tenants", schema="platform")
