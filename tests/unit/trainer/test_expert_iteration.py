"""What expert iteration imitates."""

from __future__ import annotations

from dreamgym.core.episodes import Task, TerminationReason, Transition
from dreamgym.trainer.rollout import PlayedEpisode
from dreamgym.trainer.stages.expert_iteration import best_successes


def played(name: str, actions: str, *, won: bool = True, refused: int = 0) -> PlayedEpisode:
    steps = [Transition("s", action, "n", valid_action=place >= refused) for place, action in enumerate(actions)]
    reason = TerminationReason.SUCCESS if won else TerminationReason.STEP_LIMIT
    return PlayedEpisode(name, Task("t", "i"), termination=reason, success=won, transitions=steps)


def test_the_shortest_successes_without_refusals_are_kept_each_once() -> None:
    group = [
        played("long", "abcd"),
        played("lost", "a", won=False),
        played("short", "ab"),
        played("same", "ab"),
        played("refused", "xy", refused=1),
        played("other", "abc"),
    ]
    assert [episode.id for episode in best_successes(group, 3)] == ["same", "other", "long"]
    assert [episode.id for episode in best_successes(group, 9)] == ["same", "other", "long", "refused"]
    assert best_successes([played("lost", "a", won=False)], 3) == []


def test_an_episode_that_failed_for_other_reasons_is_not_imitated() -> None:
    broken = played("broken", "ab")
    broken.termination = TerminationReason.INFRASTRUCTURE
    assert best_successes([broken], 3) == []
