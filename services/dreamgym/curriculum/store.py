"""Runs of the curriculum in Postgres. Every write of a run holds the run's row, so replicas take turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import delete, exc, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from dreamgym.core.episodes import Task
from dreamgym.core.errors import InvalidInputError, NotFoundError, UnavailableError
from dreamgym.curriculum.selection import Group, Selection, TaskRecord
from dreamgym.curriculum.settings import CurriculumSettings
from dreamgym.curriculum.tables import IterationRow, OutcomeRow, RunRow, TaskRow


@dataclass(frozen=True)
class Run:
    run_id: str
    environment_id: str
    synthetic_share: float
    seed: int
    experience_model: str
    retire_at: float


@dataclass(frozen=True)
class Outcome:
    task_id: str
    rewards: tuple[float, ...]
    failed_episodes: int = 0


@dataclass(frozen=True)
class StoredTask:
    """A task of a run with its lineage and record."""

    task: Task
    created_iteration: int
    record: TaskRecord


@dataclass(frozen=True)
class Iteration:
    selection: Selection
    generated: int | None
    rejected: int | None


class CurriculumStore:
    """All access to schema `curriculum`."""

    def __init__(self, settings: CurriculumSettings) -> None:
        deadline_ms = int(settings.curriculum_statement_deadline_s * 1000)
        self._engine = create_async_engine(
            settings.database_url,
            pool_size=settings.curriculum_pool_size,
            max_overflow=0,
            pool_timeout=settings.curriculum_statement_deadline_s,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": 5,
                "options": f"-c statement_timeout={deadline_ms} -c lock_timeout={deadline_ms}",
                "application_name": "dreamgym-curriculum",
            },
        )
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)

    async def close(self) -> None:
        await self._engine.dispose()

    async def open_run(self, run: Run, tasks: Sequence[Task]) -> tuple[int, bool]:
        """Store a run and its pool; answers the size of the pool and whether the run was there already."""
        async with self._transaction() as session:
            opened = await session.execute(
                insert(RunRow).values(**asdict(run)).on_conflict_do_nothing().returning(RunRow.run_id)
            )
            already = opened.first() is None
            if not already:
                await self._insert_tasks(session, run.run_id, tasks, generation={}, iteration=0, first=0)
            size = await session.scalar(
                select(func.count()).where(TaskRow.run_id == run.run_id, TaskRow.generation == 0).select_from(TaskRow)
            )
            return int(size or 0), already

    async def run(self, run_id: str) -> Run:
        """Raises NotFoundError if the run was never opened."""
        async with self._transaction() as session:
            return _run(await self._row(session, run_id, lock=False))

    async def tasks(self, run_id: str, before: int | None = None) -> list[StoredTask]:
        """The pool in its order, with what was seen before an iteration (None: everything)."""
        async with self._transaction() as session:
            return await self._tasks(session, run_id, before)

    async def iteration(self, run_id: str, iteration: int) -> Iteration | None:
        async with self._transaction() as session:
            row = await session.get(IterationRow, (run_id, iteration))
            return _iteration(row) if row is not None else None

    async def keep_selection(self, run_id: str, iteration: int, selection: Selection) -> Iteration:
        """Store an iteration's tasks unless it has some; answers those that count."""
        async with self._transaction() as session:
            await self._row(session, run_id, lock=True)
            row = await session.get(IterationRow, (run_id, iteration))
            if row is None:
                row = IterationRow(
                    run_id=run_id,
                    iteration=iteration,
                    task_ids=list(selection.task_ids),
                    synthetic=selection.synthetic,
                    retired=selection.retired,
                    generated=None,
                    rejected=None,
                )
                session.add(row)
            return _iteration(row)

    async def record_outcomes(self, run_id: str, iteration: int, outcomes: Sequence[Outcome]) -> int:
        """Store groups that are not there yet; answers how many. Raises InvalidInputError for a task not in the run."""
        if not outcomes:
            return 0
        async with self._transaction() as session:
            await self._row(session, run_id, lock=True)
            known = set(await session.scalars(select(TaskRow.task_id).where(TaskRow.run_id == run_id)))
            unknown = [outcome.task_id for outcome in outcomes if outcome.task_id not in known]
            if unknown:
                raise InvalidInputError(f"The run {run_id} has no task {unknown[0]!r}.", remedy="Report its own tasks.")
            rows = [
                {**asdict(outcome), "rewards": list(outcome.rewards), "run_id": run_id, "iteration": iteration}
                for outcome in outcomes
            ]
            stored = await session.execute(
                insert(OutcomeRow).values(rows).on_conflict_do_nothing().returning(OutcomeRow.task_id)
            )
            return len(stored.all())

    async def add_generated(self, run_id: str, iteration: int, tasks: Sequence[Task], rejected: int) -> tuple[int, int]:
        """Store an iteration's variations once; a second answer of the generator is dropped. Answers what counts."""
        async with self._transaction() as session:
            await self._row(session, run_id, lock=True)
            row = await session.get(IterationRow, (run_id, iteration))
            if row is None:
                row = IterationRow(run_id=run_id, iteration=iteration, task_ids=[], synthetic=0, retired=0)
                session.add(row)
            if row.generated is not None:
                return row.generated, row.rejected or 0
            present = await self._tasks(session, run_id, None)
            generation = {item.task.id: item.record.generation for item in present}
            fresh = [task for task in tasks if task.id not in generation]
            await self._insert_tasks(session, run_id, fresh, generation, iteration, first=len(present))
            row.generated, row.rejected = len(fresh), rejected + len(tasks) - len(fresh)
            return row.generated, row.rejected

    async def rewind(self, run_id: str, iteration: int) -> int:
        """Forget outcomes, generated tasks and selections of an iteration and all later ones."""
        async with self._transaction() as session:
            await self._row(session, run_id, lock=True)
            dropped = await session.execute(
                delete(OutcomeRow)
                .where(OutcomeRow.run_id == run_id, OutcomeRow.iteration >= iteration)
                .returning(OutcomeRow.task_id)
            )
            count = len(dropped.all())
            await session.execute(
                delete(TaskRow).where(
                    TaskRow.run_id == run_id, TaskRow.generation > 0, TaskRow.created_iteration >= iteration
                )
            )
            await session.execute(
                delete(IterationRow).where(IterationRow.run_id == run_id, IterationRow.iteration >= iteration)
            )
            return count

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncSession]:
        try:
            async with self._sessions() as session, session.begin():
                yield session
        except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, OSError) as error:
            raise UnavailableError(
                f"The curriculum's database does not answer: {type(error).__name__}.",
                remedy="Check DREAMGYM_DATABASE_URL and the database's log, then retry.",
            ) from error

    async def _row(self, session: AsyncSession, run_id: str, *, lock: bool) -> RunRow:
        row = await session.get(RunRow, run_id, with_for_update=lock)
        if row is None:
            raise NotFoundError(f"There is no curriculum run {run_id!r}.", remedy="Open it first (OpenRun).")
        return row

    async def _tasks(self, session: AsyncSession, run_id: str, before: int | None) -> list[StoredTask]:
        of_run = select(TaskRow).where(TaskRow.run_id == run_id).order_by(TaskRow.position)
        seen = select(OutcomeRow).where(OutcomeRow.run_id == run_id).order_by(OutcomeRow.iteration)
        if before is not None:
            # A task generated by the report of iteration i belongs to i + 1 and later ones.
            of_run = of_run.where((TaskRow.generation == 0) | (TaskRow.created_iteration < before))
            seen = seen.where(OutcomeRow.iteration < before)
        groups: dict[str, list[Group]] = {}
        for outcome in await session.scalars(seen):
            groups.setdefault(outcome.task_id, []).append(Group(outcome.iteration, tuple(outcome.rewards)))
        return [
            StoredTask(
                task=Task(**row.task),
                created_iteration=row.created_iteration,
                record=TaskRecord(row.task_id, row.generation, tuple(groups.get(row.task_id, ()))),
            )
            for row in await session.scalars(of_run)
        ]

    async def _insert_tasks(
        self,
        session: AsyncSession,
        run_id: str,
        tasks: Sequence[Task],
        generation: dict[str, int],
        iteration: int,
        first: int,
    ) -> None:
        rows: list[dict[str, Any]] = [
            {
                "run_id": run_id,
                "task_id": task.id,
                "position": first + index,
                "parent_id": task.parent_id,
                "generation": generation.get(task.parent_id, 0) + 1 if generation else 0,
                "created_iteration": iteration,
                "task": asdict(task),
            }
            for index, task in enumerate(tasks)
        ]
        if rows:
            await session.execute(insert(TaskRow).values(rows))


def _run(row: RunRow) -> Run:
    return Run(row.run_id, row.environment_id, row.synthetic_share, row.seed, row.experience_model, row.retire_at)


def _iteration(row: IterationRow) -> Iteration:
    return Iteration(Selection(tuple(row.task_ids), row.synthetic, row.retired), row.generated, row.rejected)
