"""The tables of schema `curriculum`. The migrations in `migrations/versions/curriculum` make them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    MetaData,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA = "curriculum"


class Base(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA)
    type_annotation_map = {str: Text, int: BigInteger, float: Double, datetime: DateTime(timezone=True)}  # noqa: RUF012


class RunRow(Base):
    """One training run and its settings. Writers of a run take turns by locking its row."""

    __tablename__ = "runs"
    __table_args__ = (CheckConstraint("synthetic_share >= 0 AND synthetic_share <= 1", name="runs_synthetic_share"),)

    run_id: Mapped[str] = mapped_column(primary_key=True)
    environment_id: Mapped[str]
    synthetic_share: Mapped[float]
    seed: Mapped[int]
    experience_model: Mapped[str]
    retire_at: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class TaskRow(Base):
    """A task of a run, real (generation 0) or generated, with its parent."""

    __tablename__ = "run_tasks"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True)
    task_id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    """Order of arrival, so that a run's pool is always read in the same order."""
    parent_id: Mapped[str]
    generation: Mapped[int]
    created_iteration: Mapped[int]
    task: Mapped[dict[str, Any]] = mapped_column(JSONB)


class IterationRow(Base):
    """The tasks that an iteration was answered, so that a repeat answers the same; and what its report generated."""

    __tablename__ = "iterations"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True)
    iteration: Mapped[int] = mapped_column(primary_key=True)
    task_ids: Mapped[list[str]] = mapped_column(ARRAY(Text))
    synthetic: Mapped[int]
    retired: Mapped[int]
    # NULL until the generator was asked, so that a report that was cut off asks it again.
    generated: Mapped[int | None]
    rejected: Mapped[int | None]


class OutcomeRow(Base):
    """Rewards of one group; the key makes a repeated report change nothing."""

    __tablename__ = "outcomes"
    # An outcome of a task that the run does not hold would count for nothing: it is refused.
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "task_id"], ["run_tasks.run_id", "run_tasks.task_id"], ondelete="CASCADE", name="outcomes_task"
        ),
    )

    run_id: Mapped[str] = mapped_column(primary_key=True)
    iteration: Mapped[int] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(primary_key=True)
    rewards: Mapped[list[float]] = mapped_column(ARRAY(Double))
    failed_episodes: Mapped[int]
