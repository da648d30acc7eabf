"""The tables of schema `platform`: what the platform knows about customers, environments, jobs and models.

Everything belongs to a tenant; tasks, stages, events and metrics through their environment or job.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dreamgym.core.job_states import JobState, StageState

SCHEMA = "platform"


def _one_of(column: str, values: Any) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


class Base(DeclarativeBase):
    metadata = MetaData(
        schema=SCHEMA,
        naming_convention={
            "pk": "%(table_name)s_pkey",
            "fk": "%(table_name)s_%(column_0_name)s_fkey",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "ck": "%(table_name)s_%(constraint_name)s_check",
        },
    )
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy
        str: Text(),
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB(none_as_null=True),
        list[str]: ARRAY(Text()),
        float: Double(),
    }


class Tenant(Base):
    __tablename__ = "tenants"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ApiKey(Base):
    """A key is shown once, when it is made; only its hash is stored."""

    __tablename__ = "api_keys"
    __table_args__ = (
        # A key without a scope would be a key that can do nothing: a mistake of whoever made it.
        CheckConstraint("cardinality(scopes) > 0 AND scopes <@ ARRAY['admin', 'write', 'read']", name="scopes"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey(Tenant.id, ondelete="CASCADE"), index=True)
    name: Mapped[str]
    # The look-up of every request; unique, so that one secret is never two identities.
    sha256: Mapped[str] = mapped_column(unique=True)
    # The first characters, so that people can tell their keys apart.
    hint: Mapped[str]
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]


class Environment(Base):
    __tablename__ = "environments"
    # Jobs name environments by name: two with one name would make a job ambiguous.
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey(Tenant.id, ondelete="RESTRICT"))
    name: Mapped[str]
    description: Mapped[str]
    action_format: Mapped[str]
    # Empty: there is no real environment, only the dream.
    adapter: Mapped[str]
    max_steps: Mapped[int]
    settings: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Task(Base):
    __tablename__ = "tasks"
    __table_args__ = (
        # A repeated upload finds its tasks again by the id that the customer gave.
        UniqueConstraint("environment_id", "id"),
        Index(None, "environment_id", "number"),
    )
    # Order of arrival, and the cursor of listings.
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    environment_id: Mapped[str] = mapped_column(ForeignKey(Environment.id, ondelete="CASCADE"))
    id: Mapped[str]
    instruction: Mapped[str]
    initial_state: Mapped[str]
    criterion: Mapped[dict[str, Any] | None]
    # `metadata` is taken by SQLAlchemy, the column is not.
    details: Mapped[dict[str, Any]] = mapped_column("metadata", server_default=text("'{}'"))
    split: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Job(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        # A repeated POST with the same key finds the job of the first one instead of starting a second.
        UniqueConstraint("tenant_id", "idempotency_key"),
        CheckConstraint(_one_of("state", JobState), name="state"),
        # A job under work without a deadline would never be given to another worker.
        CheckConstraint(
            "(state IN ('running', 'pausing', 'cancelling')) = (lease_expires_at IS NOT NULL)", name="lease"
        ),
        # The sweeper looks only at jobs that may need it, however many are finished.
        Index(
            "jobs_unfinished_idx",
            "state",
            postgresql_where=text("state IN ('queued', 'running', 'pausing', 'cancelling')"),
        ),
        Index("jobs_tenant_id_id_idx", "tenant_id", "id"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey(Tenant.id, ondelete="RESTRICT"))
    # RESTRICT: an environment with jobs is history that models refer to.
    environment_id: Mapped[str] = mapped_column(ForeignKey(Environment.id, ondelete="RESTRICT"), index=True)
    kind: Mapped[str]
    name: Mapped[str]
    spec: Mapped[dict[str, Any]]
    state: Mapped[str]
    seed: Mapped[int] = mapped_column(BigInteger)
    # Fencing token: grows with every lease, and every write of a worker must carry the newest.
    attempt: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    lease_expires_at: Mapped[datetime | None]
    worker: Mapped[str] = mapped_column(server_default="")
    celery_task_id: Mapped[str] = mapped_column(server_default="")
    pid: Mapped[int | None] = mapped_column(BigInteger)
    result: Mapped[dict[str, Any] | None]
    error: Mapped[dict[str, Any] | None]
    idempotency_key: Mapped[str | None]
    # While queued: when to send it to the broker (again).
    dispatch_due_at: Mapped[datetime | None]
    dispatches: Mapped[int] = mapped_column(server_default=text("0"))
    # Why the last sending failed; empty once one succeeded.
    dispatch_error: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class JobStage(Base):
    __tablename__ = "job_stages"
    __table_args__ = (CheckConstraint(_one_of("state", StageState), name="state"),)
    job_id: Mapped[str] = mapped_column(ForeignKey(Job.id, ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    kind: Mapped[str]
    spec: Mapped[dict[str, Any]]
    state: Mapped[str]
    result: Mapped[dict[str, Any] | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class JobEvent(Base):
    """What happened to a job. Written only under the lock of its job's row, so that ids grow in commit order."""

    __tablename__ = "job_events"
    __table_args__ = (Index(None, "job_id", "id"),)
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey(Job.id, ondelete="CASCADE"))
    type: Mapped[str]
    data: Mapped[dict[str, Any]]
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class JobMetric(Base):
    """One point of a curve. Written only under the lock of its job's row, so that ids grow in commit order."""

    __tablename__ = "job_metrics"
    __table_args__ = (
        # A resumed attempt repeats the steps since the checkpoint: its points replace those of the lost one.
        UniqueConstraint("job_id", "stage", "name", "step"),
        Index(None, "job_id", "id"),
    )
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey(Job.id, ondelete="CASCADE"))
    stage: Mapped[int]
    name: Mapped[str]
    step: Mapped[int] = mapped_column(BigInteger)
    value: Mapped[float]
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Model(Base):
    __tablename__ = "models"
    __table_args__ = (
        # A version is immutable and names one folder of the object store, which all tenants share.
        UniqueConstraint("version"),
        CheckConstraint("role IN ('policy', 'experience')", name="role"),
        Index(None, "environment_id", "role", "id"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey(Tenant.id, ondelete="RESTRICT"))
    environment_id: Mapped[str] = mapped_column(ForeignKey(Environment.id, ondelete="RESTRICT"))
    job_id: Mapped[str] = mapped_column(ForeignKey(Job.id, ondelete="RESTRICT"), index=True)
    role: Mapped[str]
    version: Mapped[str]
    location: Mapped[str]
    sha256: Mapped[str]
    manifest: Mapped[dict[str, Any]]
    # Experience models: the newest measurement (`core.fidelity_floor` reads it).
    fidelity: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
