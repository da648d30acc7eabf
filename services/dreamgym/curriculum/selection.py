"""Which tasks the next iteration plays: pure rules over what was seen so far.

A task's weight is the reward variance of its last groups: highest where it is won half of the time. A task that was never
tried weighs as much as the best one; one that was never won is *unknown*, not too hard, and is tried again after a while;
one that is won almost always is retired.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dreamgym.core.statistics import reward_variance

RECENT_GROUPS = 2
EXPLORATION_WEIGHT = 0.25
"""The variance of a binary reward at p = 1/2, the highest there is."""
FLOOR_WEIGHT = 0.02
"""Keeps a task whose last groups happened to agree in play."""
REPILOT_AFTER = 3
"""Iterations until a task that was never won regains full weight, times the groups that failed (at most 4)."""


class Standing(StrEnum):
    UNKNOWN = "unknown"
    LEARNING = "learning"
    RETIRED = "retired"


@dataclass(frozen=True)
class Group:
    """Rewards of one task's episodes in one iteration; failed episodes are not among them."""

    iteration: int
    rewards: tuple[float, ...]


@dataclass(frozen=True)
class TaskRecord:
    """A task of a run with its groups, oldest first. `generation` 0 is a real task."""

    task_id: str
    generation: int = 0
    groups: tuple[Group, ...] = ()

    @property
    def synthetic(self) -> bool:
        return self.generation > 0

    @property
    def recent(self) -> tuple[float, ...]:
        return tuple(reward for group in self._counted[-RECENT_GROUPS:] for reward in group.rewards)

    @property
    def attempts(self) -> int:
        return sum(len(group.rewards) for group in self.groups)

    @property
    def success_rate(self) -> float:
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    @property
    def variance(self) -> float:
        return reward_variance(self.recent)

    @property
    def last_iteration(self) -> int:
        return self.groups[-1].iteration if self.groups else -1

    @property
    def misses(self) -> int:
        """Groups without any reward since the last one that had some."""
        count = 0
        for group in reversed(self._counted):
            if any(reward > 0 for reward in group.rewards):
                break
            count += 1
        return count

    @property
    def _counted(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.rewards)


@dataclass(frozen=True)
class Selection:
    """Chosen task ids in playing order, how many of them are generated, and how many tasks of the run are retired."""

    task_ids: tuple[str, ...]
    synthetic: int
    retired: int


def standing(task: TaskRecord, retire_at: float) -> Standing:
    """Retired from `retire_at` on; unknown while its recent groups brought nothing; else learning."""
    if not any(task.recent):
        return Standing.UNKNOWN
    return Standing.RETIRED if task.success_rate >= retire_at else Standing.LEARNING


def weight(task: TaskRecord, iteration: int, retire_at: float) -> float:
    """How much a task deserves to be played in an iteration; 0 for a retired one."""
    status = standing(task, retire_at)
    if status is Standing.RETIRED:
        return 0.0
    if status is Standing.LEARNING:
        return max(task.variance, FLOOR_WEIGHT)
    if task.misses == 0:
        return EXPLORATION_WEIGHT
    waited = (iteration - task.last_iteration) / (REPILOT_AFTER * min(task.misses, 4))
    return max(FLOOR_WEIGHT, EXPLORATION_WEIGHT * min(1.0, waited))


def select(
    tasks: Sequence[TaskRecord], *, iteration: int, count: int, seed: int, synthetic_share: float, retire_at: float
) -> Selection:
    """Draw at most `count` different tasks, without replacement and by weight; deterministic in (seed, iteration).

    Generated tasks are at most `synthetic_share` of those chosen; variations that wait for their first try come first, since
    they descend from tasks at the edge of what the policy can do, while most of a large pool of real tasks is not. Retired
    real tasks only fill what is left, the ones that were not seen for longest first: they show forgetting.
    """
    rng = random.Random(f"{seed}|{iteration}")
    weights = {task.task_id: weight(task, iteration, retire_at) for task in tasks}
    # Efraimidis and Spirakis 2006: the largest u ** (1 / w) are a weighted sample without replacement.
    keys = {task.task_id: rng.random() ** (1 / max(weights[task.task_id], 1e-9)) for task in tasks}
    ranked = sorted((task for task in tasks if weights[task.task_id] > 0), key=lambda task: -keys[task.task_id])
    retired = [task for task in tasks if weights[task.task_id] <= 0]
    spare = sorted((task for task in retired if not task.synthetic), key=lambda t: (t.last_iteration, keys[t.task_id]))
    real = [*(task for task in ranked if not task.synthetic), *spare]
    cap = _synthetic_cap(count, min(count, len(real)), synthetic_share)
    fresh = [task for task in ranked if task.synthetic and not task.groups]
    tried = [task for task in ranked if not task.synthetic or task.groups]
    chosen: list[TaskRecord] = []
    synthetic = 0
    for task in [*fresh, *tried, *spare]:
        if len(chosen) >= count:
            break
        if task.synthetic and synthetic >= cap:
            continue
        synthetic += task.synthetic
        chosen.append(task)
    return Selection(tuple(task.task_id for task in chosen), synthetic, len(retired))


def seeds_for_generation(tasks: Sequence[TaskRecord], iteration: int, most: int) -> list[TaskRecord]:
    """The tasks of an iteration with the highest variance, highest first; none of zero variance."""
    played = [task for task in tasks if task.last_iteration == iteration]
    varied = [(reward_variance(task.groups[-1].rewards), task) for task in played]
    ranked = sorted(((v, task) for v, task in varied if v > 0), key=lambda pair: (-pair[0], pair[1].task_id))
    return [task for _, task in ranked[:most]]


def wanted_variations(tasks: Sequence[TaskRecord], chosen: int, synthetic_share: float) -> int:
    """How many new variations the next iteration can use beyond the generated tasks that wait to be tried."""
    cap = _synthetic_cap(chosen, chosen, synthetic_share)
    waiting = sum(task.synthetic and not task.groups for task in tasks)
    return max(0, cap - waiting)


def _synthetic_cap(count: int, real: int, share: float) -> int:
    """Most generated tasks among `count` when `real` real ones are there, so that the share holds for what is chosen."""
    if share >= 1:
        return count
    return min(int(share * count + 1e-9), int(real * share / (1 - share) + 1e-9))
