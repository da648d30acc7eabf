"""Reads whole episodes in the order of storing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from dreamgym.core.episodes import Source
from dreamgym.core.errors import NotFoundError
from dreamgym.replay.database import typed_errors
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.records import EpisodeRecord, TransitionRecord
from dreamgym.replay.tables import SCHEMA, EpisodeRow

_PAGE_EPISODES = 100
_PAGE_TRANSITIONS = 2_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Which episodes: empty means all of them. `cursor` is the newest transition id, 0 for all there are at the call.

    `limit` is the largest number of episodes, 0 for no limit; `after_episode_id` continues behind that episode.
    """

    sources: frozenset[Source] = frozenset()
    splits: frozenset[str] = frozenset()
    job_id: str = ""
    cursor: int = 0
    limit: int = 0
    after_episode_id: str = ""


async def list_episodes(
    engine: AsyncEngine, environment_id: str, selection: Selection, deadline_s: float
) -> AsyncIterator[EpisodeRecord]:
    """Yield the selected episodes; no connection is held between pages, so a slow reader blocks nobody.

    Episodes that are stored meanwhile do not appear; deleted ones disappear. `deadline_s` is that of one page.
    """
    async with typed_errors(deadline_s), engine.connect() as connection:
        newest = selection.cursor or await newest_id(connection, environment_id)
        position = await _position(connection, environment_id, selection.after_episode_id)
    left = selection.limit or None
    while left is None or left > 0:
        size = _PAGE_EPISODES if left is None else min(left, _PAGE_EPISODES)
        async with typed_errors(deadline_s), engine.connect() as connection:
            found = await connection.execute(
                select(EpisodeRow.__table__)
                .where(*_conditions(environment_id, selection, position, newest))
                .order_by(EpisodeRow.last_transition_id)
                .limit(size)
            )
            page = _prefix(found.mappings().all())
            steps = await _transitions(connection, environment_id, [row["episode_id"] for row in page]) if page else {}
        for row in page:
            position = row["last_transition_id"]
            # Without transitions it was deleted between the two statements.
            if transitions := steps.get(row["episode_id"]):
                yield _episode(row, transitions)
        if not page:
            return
        left = None if left is None else left - len(page)


async def newest_id(connection: AsyncConnection, environment_id: str) -> int:
    """The newest transition id of an environment, 0 if there is none."""
    newest = await connection.scalar(
        select(func.max(EpisodeRow.last_transition_id)).where(EpisodeRow.environment_id == environment_id)
    )
    return int(newest or 0)


async def _position(connection: AsyncConnection, environment_id: str, episode_id: str) -> int:
    if not episode_id:
        return 0
    position = await connection.scalar(
        select(EpisodeRow.last_transition_id).where(
            EpisodeRow.environment_id == environment_id, EpisodeRow.episode_id == episode_id
        )
    )
    if position is None:
        raise NotFoundError(
            f"Episode {episode_id!r} of environment {environment_id!r} is not stored, so nothing comes after it.",
            remedy="Start the listing again.",
        )
    return position


def _conditions(environment_id: str, selection: Selection, position: int, newest: int) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [
        EpisodeRow.environment_id == environment_id,
        EpisodeRow.last_transition_id > position,
        EpisodeRow.last_transition_id <= newest,
    ]
    if selection.sources:
        conditions.append(EpisodeRow.source.in_([source.value for source in selection.sources]))
    if selection.splits:
        conditions.append(EpisodeRow.split.in_(list(selection.splits)))
    if selection.job_id:
        conditions.append(EpisodeRow.job_id == selection.job_id)
    return conditions


def _prefix(rows: Sequence[Any]) -> list[Any]:
    """As many of the first episodes as have about a page of transitions, but at least one."""
    page: list[Any] = []
    total = 0
    for row in rows:
        total += row["transitions"]
        if page and total > _PAGE_TRANSITIONS:
            break
        page.append(row)
    return page


async def _transitions(
    connection: AsyncConnection, environment_id: str, episode_ids: list[str]
) -> dict[str, list[TransitionRecord]]:
    rows = await connection.execute(
        text(
            "SELECT episode_id, step, state, action, reasoning, next_state, reward, done, success, valid_action,"
            f" confidence, id FROM {SCHEMA}.{partition_name(environment_id)} WHERE episode_id = ANY(:ids) ORDER BY id"
        ),
        {"ids": episode_ids},
    )
    steps: dict[str, list[TransitionRecord]] = {}
    for row in rows:
        steps.setdefault(row[0], []).append(TransitionRecord(*row[1:]))
    return steps


def _episode(row: Any, transitions: list[TransitionRecord]) -> EpisodeRecord:
    return EpisodeRecord(
        episode_id=row["episode_id"],
        environment_id=row["environment_id"],
        task_id=row["task_id"],
        instruction=row["instruction"],
        source=Source(row["source"]),
        split=row["split"],
        termination=row["termination"],
        success=row["success"],
        job_id=row["job_id"],
        policy_version=row["policy_version"],
        model_version=row["model_version"],
        metadata=row["metadata"],
        transitions=tuple(transitions),
    )
