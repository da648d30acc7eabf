"""What the curriculum does with a run: choose, record, generate, rewind. Knows nothing of gRPC."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Counter

from dreamgym.core.episodes import Task
from dreamgym.core.errors import DreamGymError, InvalidInputError
from dreamgym.curriculum import selection
from dreamgym.curriculum.generator import Generator, VariationRequest
from dreamgym.curriculum.store import CurriculumStore, Outcome, Run, StoredTask

log = logging.getLogger(__name__)
GENERATOR_FAILURES = Counter(
    "dreamgym_curriculum_generator_failures_total", "Times the task generator gave no answer.", ["code"]
)


@dataclass(frozen=True)
class NextTasks:
    tasks: Sequence[Task]
    synthetic: int
    retired: int


@dataclass(frozen=True)
class Report:
    recorded: int
    generated: int
    rejected: int


class Curriculum:
    """The rules of METHOD section 5 over stored runs."""

    def __init__(self, store: CurriculumStore, generator: Generator, generation_seeds: int = 4) -> None:
        self._store = store
        self._generator = generator
        self._generation_seeds = generation_seeds

    async def open_run(self, run: Run, tasks: Sequence[Task]) -> tuple[int, bool]:
        """Open a run; answers the size of its pool and whether it was open. Raises InvalidInputError."""
        if not run.run_id or not tasks:
            raise InvalidInputError("A run needs a run_id and at least one task.")
        if not 0 <= run.synthetic_share <= 1:
            raise InvalidInputError(f"synthetic_share is {run.synthetic_share}.", remedy="Choose 0 to 1.")
        twice = next((task.id for i, task in enumerate(tasks) if any(task.id == other.id for other in tasks[:i])), None)
        if twice is not None or any(not task.id for task in tasks):
            raise InvalidInputError(f"The task id {twice or ''!r} is empty or there twice.", remedy="Make ids unique.")
        return await self._store.open_run(run, tasks)

    async def next_tasks(self, run_id: str, iteration: int, count: int) -> NextTasks:
        """The iteration's tasks: those that were answered before, else a new selection that is kept."""
        if iteration < 0 or count < 1:
            raise InvalidInputError(f"iteration {iteration} and count {count} must be at least 0 and 1.")
        run = await self._store.run(run_id)
        pool = await self._store.tasks(run_id, before=iteration)
        kept = await self._store.iteration(run_id, iteration)
        if kept is None:
            drawn = selection.select(
                [item.record for item in pool],
                iteration=iteration,
                count=count,
                seed=run.seed,
                synthetic_share=run.synthetic_share,
                retire_at=run.retire_at,
            )
            kept = await self._store.keep_selection(run_id, iteration, drawn)
        by_id = {item.task.id: item.task for item in pool}
        chosen = kept.selection
        return NextTasks([by_id[task_id] for task_id in chosen.task_ids], chosen.synthetic, chosen.retired)

    async def report(self, run_id: str, iteration: int, outcomes: Sequence[Outcome]) -> Report:
        """Record groups, then ask for variations of those with the highest variance. A repeat changes nothing."""
        if any(not math.isfinite(reward) for outcome in outcomes for reward in outcome.rewards):
            raise InvalidInputError("A reward is not a finite number.")
        run = await self._store.run(run_id)
        recorded = await self._store.record_outcomes(run_id, iteration, outcomes)
        kept = await self._store.iteration(run_id, iteration)
        if kept is not None and kept.generated is not None:
            return Report(recorded, kept.generated, kept.rejected or 0)
        generated, rejected = await self._generate(run, iteration)
        return Report(recorded, generated, rejected)

    async def rewind(self, run_id: str, iteration: int) -> int:
        return await self._store.rewind(run_id, iteration)

    async def lineage(self, run_id: str) -> tuple[Run, list[StoredTask]]:
        return await self._store.run(run_id), await self._store.tasks(run_id)

    async def _generate(self, run: Run, iteration: int) -> tuple[int, int]:
        """New tasks for the next iteration. A generator that fails is logged and counted; the run goes on without."""
        pool = await self._store.tasks(run.run_id, before=iteration + 1)
        records = [item.record for item in pool]
        played = sum(record.last_iteration == iteration for record in records)
        wanted = selection.wanted_variations(records, played, run.synthetic_share)
        best = selection.seeds_for_generation(records, iteration, self._generation_seeds)
        if not wanted or not best or not run.experience_model:
            return 0, 0
        by_id = {item.task.id: item.task for item in pool}
        request = VariationRequest(
            environment_id=run.environment_id,
            experience_model=run.experience_model,
            seeds=[by_id[record.task_id] for record in best],
            count=wanted,
            seed=run.seed * 100_003 + iteration,
            known_instructions=[item.task.instruction for item in pool],
        )
        try:
            variations = await self._generator.vary(request)
        except DreamGymError as error:
            GENERATOR_FAILURES.labels(error.code).inc()
            log.warning("no variations", extra={"run": run.run_id, "iteration": iteration, "error": str(error)})
            return 0, 0
        return await self._store.add_generated(run.run_id, iteration, variations.tasks, variations.rejected)
