"""The tables of schema `replay`. The migrations in `migrations/versions/replay` make them; a test compares the two."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import BigInteger, CheckConstraint, DateTime, Index, MetaData, Sequence, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA = "replay"
DIMENSIONS = 384
SOURCES = "source IN ('seed', 'dream', 'real')"
TRANSITION_IDS = Sequence("transition_ids", schema=SCHEMA, metadata=(_metadata := MetaData(schema=SCHEMA)))
"""Ids grow in the order of commits within an environment: an append holds the environment's row until it commits."""


class Base(DeclarativeBase):
    metadata = _metadata
    type_annotation_map = {str: Text, int: BigInteger, datetime: DateTime(timezone=True)}  # noqa: RUF012


class EnvironmentRow(Base):
    """An environment with data: which encoder made its embeddings, how many transitions it holds."""

    __tablename__ = "environments"

    environment_id: Mapped[str] = mapped_column(primary_key=True)
    # Embeddings of two encoders cannot be compared, so a whole environment has one.
    encoder: Mapped[str]
    transitions: Mapped[int] = mapped_column(server_default=text("0"))
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # Of the transitions, those of dreams.
    dream_transitions: Mapped[int] = mapped_column(server_default=text("0"))
    # While the embeddings are made anew (see `reembedding`): by which encoder, else empty; and up to which transition.
    next_encoder: Mapped[str] = mapped_column(server_default=text("''"))
    reembedded_to: Mapped[int] = mapped_column(server_default=text("0"))


class RejectionRow(Base):
    """How many appended episodes of an environment were not stored, by reason."""

    __tablename__ = "rejections"

    environment_id: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[str] = mapped_column(primary_key=True)
    episodes: Mapped[int]
    transitions: Mapped[int]


class EpisodeRow(Base):
    """One episode; its key makes a repeated append store nothing."""

    __tablename__ = "episodes"
    __table_args__ = (
        CheckConstraint(SOURCES, name="episodes_source"),
        # The order of storing, for listing page by page and up to a cursor.
        Index("episodes_in_order", "environment_id", "last_transition_id", unique=True),
    )

    environment_id: Mapped[str] = mapped_column(primary_key=True)
    episode_id: Mapped[str] = mapped_column(primary_key=True)
    last_transition_id: Mapped[int]
    transitions: Mapped[int]
    task_id: Mapped[str]
    instruction: Mapped[str]
    source: Mapped[str]
    split: Mapped[str]
    termination: Mapped[str]
    success: Mapped[bool]
    job_id: Mapped[str]
    policy_version: Mapped[str]
    model_version: Mapped[str]
    metadata_: Mapped[dict[str, Any]] = mapped_column("metadata", JSONB)
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class TransitionRow(Base):
    """One transition, in the partition of its environment (see `partitions`).

    It has no foreign key to its episode: both are written and deleted in one transaction that holds the environment's
    row, and a key would make every new partition wait for all writers of all environments.
    """

    __tablename__ = "transitions"
    __table_args__ = (
        CheckConstraint(SOURCES, name="transitions_source"),
        CheckConstraint("confidence >= 0 AND confidence <= 1", name="transitions_confidence"),
        Index("transitions_of_episode", "environment_id", "episode_id", "step", unique=True),
        # For exact searches among few rows, of which a large environment would otherwise read all.
        Index("transitions_of_source", "source", "split"),
        {"postgresql_partition_by": "LIST (environment_id)"},
    )

    environment_id: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(TRANSITION_IDS, primary_key=True, server_default=TRANSITION_IDS.next_value())
    embedding: Mapped[Any] = mapped_column(HALFVEC(DIMENSIONS))
    confidence: Mapped[float]
    source: Mapped[str]
    episode_id: Mapped[str]
    task_id: Mapped[str]
    split: Mapped[str]
    step: Mapped[int]
    state: Mapped[str]
    action: Mapped[str]
    reasoning: Mapped[str]
    next_state: Mapped[str]
    reward: Mapped[float]
    done: Mapped[bool]
    success: Mapped[bool]
    valid_action: Mapped[bool]
    job_id: Mapped[str]
    model_version: Mapped[str]
    policy_version: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
