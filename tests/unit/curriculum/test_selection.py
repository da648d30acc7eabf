from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.curriculum.selection import (
    Group,
    Standing,
    TaskRecord,
    seeds_for_generation,
    select,
    standing,
    wanted_variations,
    weight,
)

SETTINGS = {"seed": 7, "synthetic_share": 0.25, "retire_at": 0.9}


def task(name: str, *groups: tuple[int, list[float]], generation: int = 0) -> TaskRecord:
    return TaskRecord(name, generation, tuple(Group(iteration, tuple(rewards)) for iteration, rewards in groups))


groups = st.lists(st.lists(st.sampled_from([0.0, 1.0]), max_size=6), max_size=4)
pools = st.lists(st.tuples(groups, st.integers(0, 2)), max_size=24).map(
    lambda drawn: [
        task(f"t{index}", *enumerate(rewards), generation=generation)
        for index, (rewards, generation) in enumerate(drawn)
    ]
)


@given(pool=pools, count=st.integers(1, 16), share=st.floats(0, 1), iteration=st.integers(4, 9))
def test_a_selection_is_distinct_bounded_and_repeatable(
    pool: list[TaskRecord], count: int, share: float, iteration: int
) -> None:
    settings = {"iteration": iteration, "count": count, "seed": 3, "synthetic_share": share, "retire_at": 0.9}
    chosen = select(pool, **settings)  # type: ignore[arg-type]
    assert chosen == select(pool, **settings)  # type: ignore[arg-type]
    by_id = {record.task_id: record for record in pool}
    assert len(set(chosen.task_ids)) == len(chosen.task_ids) <= count
    synthetic = sum(by_id[name].synthetic for name in chosen.task_ids)
    assert synthetic == chosen.synthetic
    assert synthetic <= share * len(chosen.task_ids) + 1e-6
    real = sum(not record.synthetic for record in pool)
    assert len(chosen.task_ids) - synthetic == min(real, count - synthetic)


def test_tasks_won_half_of_the_time_are_played_most_often() -> None:
    pool = [
        task("even", (0, [0, 1, 0, 1])),
        task("rare", (0, [0, 0, 0, 0, 0, 0, 0, 1])),
        task("sure", (0, [1, 1, 1, 1])),
    ]
    seen: Counter[str] = Counter()
    for iteration in range(1, 300):
        seen.update(select(pool, iteration=iteration, count=1, **SETTINGS).task_ids)  # type: ignore[arg-type]
    assert seen["even"] > seen["rare"] > seen["sure"] == 0


def test_a_task_that_was_never_won_is_unknown_and_tried_again_later() -> None:
    missed = task("missed", (0, [0, 0, 0, 0]))
    assert standing(missed, 0.9) is Standing.UNKNOWN
    weights = [weight(missed, iteration, 0.9) for iteration in (1, 2, 3, 9)]
    assert weights == sorted(weights)
    assert weights[0] < weight(task("new"), 1, 0.9) == weights[-1]
    twice = task("missed", (0, [0, 0]), (3, [0, 0]))
    assert weight(twice, 6, 0.9) < weights[-1]


def test_a_fresh_variation_is_tried_at_once_however_many_real_tasks_wait() -> None:
    pool = [TaskRecord(f"real-{n}") for n in range(200)] + [TaskRecord("varied", generation=1)]
    selection = select(pool, iteration=3, count=8, seed=0, synthetic_share=0.25, retire_at=0.9)
    assert "varied" in selection.task_ids
    assert selection.synthetic == 1


def test_a_retired_task_comes_back_only_to_fill_what_is_left() -> None:
    sure = task("sure", (2, [1, 1, 1, 1]))
    assert standing(sure, 0.9) is Standing.RETIRED
    older = task("older", (1, [1, 1]))
    chosen = select([sure, task("new"), older], iteration=3, count=2, **SETTINGS)  # type: ignore[arg-type]
    assert chosen.task_ids == ("new", "older")
    assert chosen.retired == 2
    assert standing(task("sure", (2, [1, 1]), (3, [0, 1])), 0.9) is Standing.LEARNING


def test_groups_whose_episodes_all_failed_say_nothing() -> None:
    assert standing(task("broken", (0, [])), 0.9) is Standing.UNKNOWN
    assert weight(task("broken", (0, [])), 1, 0.9) == weight(task("new"), 1, 0.9)


def test_variations_are_asked_of_the_tasks_with_the_highest_variance_of_the_iteration() -> None:
    pool = [
        task("even", (4, [0, 1])),
        task("rare", (4, [0, 0, 0, 1])),
        task("sure", (4, [1, 1])),
        task("earlier", (3, [0, 1])),
    ]
    assert [record.task_id for record in seeds_for_generation(pool, 4, 3)] == ["even", "rare"]
    assert wanted_variations(pool, 16, 0.25) == 4
    assert wanted_variations([*pool, task("fresh", generation=1)], 16, 0.25) == 3
    assert wanted_variations(pool, 16, 0.0) == 0
