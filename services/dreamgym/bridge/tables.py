"""The tables of the schema `bridge`: budgets, sessions and the audit of every real action."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Everything here lives in the schema that the bridge owns."""

    metadata = MetaData(schema="bridge")
    type_annotation_map = {datetime: DateTime(timezone=True), str: Text}  # noqa: RUF012 - SQLAlchemy's own form


class Budget(Base):
    """How many real transitions a job may make, and how many it has reserved."""

    __tablename__ = "budgets"
    __table_args__ = (
        # The last wall: even a wrong statement cannot overspend.
        CheckConstraint("transitions_used >= 0 AND transitions_used <= transition_limit", name="budgets_not_overspent"),
    )

    job_id: Mapped[str] = mapped_column(primary_key=True)
    budget_id: Mapped[str] = mapped_column(primary_key=True)
    transition_limit: Mapped[int] = mapped_column(BigInteger)
    transitions_used: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SessionRow(Base):
    """One episode on a real environment, from before its reset to its end. `last_seen_at` is renewed while it lives."""

    __tablename__ = "sessions"
    __table_args__ = (
        Index("sessions_by_job", "job_id"),
        Index("sessions_by_episode", "episode_id"),
        Index("sessions_live", "last_seen_at", postgresql_where=text("ended_at IS NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    job_id: Mapped[str]
    budget_id: Mapped[str]
    environment_id: Mapped[str]
    adapter: Mapped[str]
    episode_id: Mapped[str]
    task_id: Mapped[str]
    policy_version: Mapped[str]
    worker_pid: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]
    termination: Mapped[str | None]


class AuditRow(Base):
    """One action that a policy asked for, written before it was sent; the outcome is filled in after it.

    A sent action without `answered_at` and without `error` is one whose outcome is unknown: the bridge died meanwhile.
    """

    __tablename__ = "audit"
    __table_args__ = (
        UniqueConstraint("session_id", "step", name="audit_one_row_per_step"),
        CheckConstraint("disposition IN ('sent', 'denied', 'dry_run')", name="audit_disposition"),
        Index("audit_by_job", "job_id", "id"),
        Index("audit_by_episode", "episode_id", "step"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    session_id: Mapped[int] = mapped_column(ForeignKey("bridge.sessions.id"))
    job_id: Mapped[str]
    budget_id: Mapped[str]
    environment_id: Mapped[str]
    adapter: Mapped[str]
    episode_id: Mapped[str]
    step: Mapped[int]
    action: Mapped[str]
    disposition: Mapped[str]
    reason: Mapped[str] = mapped_column(server_default=text("''"))
    policy_version: Mapped[str]
    state_excerpt: Mapped[str]
    state_sha256: Mapped[str]
    asked_at: Mapped[datetime] = mapped_column(server_default=func.now())
    answered_at: Mapped[datetime | None]
    next_state_excerpt: Mapped[str | None]
    next_state_sha256: Mapped[str | None]
    reward: Mapped[float | None]
    done: Mapped[bool | None]
    success: Mapped[bool | None]
    valid_action: Mapped[bool | None]
    error: Mapped[str | None]
