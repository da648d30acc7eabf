"""A recorded line becomes the episode that replay stores."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dreamgym.gateway.trajectories import TrajectoryInput, stored_episode


def line(**changes: Any) -> TrajectoryInput:
    content = {
        "instruction": "put the mug on the desk",
        "initial_state": "s0",
        "success": True,
        "steps": [{"action": "a0", "state": "s1"}, {"action": "a1", "state": "s2"}],
    }
    return TrajectoryInput.model_validate({**content, **changes})


def test_each_step_starts_where_the_one_before_ended() -> None:
    episode = stored_episode("env_1", line())
    assert [(t.step, t.state, t.action, t.next_state) for t in episode.transitions] == [
        (0, "s0", "a0", "s1"),
        (1, "s1", "a1", "s2"),
    ]


def test_a_success_without_rewards_is_rewarded_and_done_at_its_last_step() -> None:
    episode = stored_episode("env_1", line())
    assert [(t.reward, t.done, t.success) for t in episode.transitions] == [(0, False, False), (1, True, True)]
    assert (episode.termination, episode.success) == ("success", True)


def test_given_rewards_and_flags_are_kept() -> None:
    steps = [
        {"action": "a", "state": "s", "reward": 0.25, "valid": False},
        {"action": "b", "state": "t", "reward": -1, "done": True},
    ]
    episode = stored_episode("env_1", line(success=False, steps=steps))
    assert [(t.reward, t.done, t.valid_action) for t in episode.transitions] == [(0.25, False, False), (-1, True, True)]
    assert episode.termination == "failure"


def test_a_failure_that_nothing_ended_is_a_recording_that_stopped() -> None:
    episode = stored_episode("env_1", line(success=False))
    assert episode.termination == "step_limit"
    assert not any(t.done for t in episode.transitions)


def test_the_same_content_has_the_same_ids_and_other_content_has_others() -> None:
    first, again = stored_episode("env_1", line()), stored_episode("env_1", line())
    assert (first.episode_id, first.task_id) == (again.episode_id, again.task_id)
    assert stored_episode("env_2", line()).episode_id != first.episode_id
    other = stored_episode("env_1", line(success=False))
    assert other.episode_id != first.episode_id
    assert other.task_id == first.task_id


def test_given_ids_are_kept() -> None:
    episode = stored_episode("env_1", line(episode_id="e", task_id="t"))
    assert (episode.episode_id, episode.task_id) == ("e", "t")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"steps": []}, "steps"),
        ({"success": "perhaps"}, "success"),
        ({"termination": "step_limit"}, "termination"),
        ({"sucess": True}, "sucess"),
        ({"steps": [{"action": "a", "state": "s", "done": True}, {"action": "b", "state": "t"}]}, "steps.0 is done"),
        ({"steps": [{"action": "a", "state": "s", "reward": float("nan")}]}, "reward"),
        ({"criterion": {"maybe": 1}}, "unknown operator"),
        ({"split": "a b"}, "split"),
    ],
)
def test_a_faulty_line_is_refused_and_the_fault_is_named(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        line(**changes)
