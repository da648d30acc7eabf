from __future__ import annotations

import pytest

from dreamgym.core.errors import ConflictError
from dreamgym.core.job_states import TERMINAL, TRANSITIONS, JobState, require_transition


def test_every_state_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(JobState)
    reached = {JobState.QUEUED}.union(*TRANSITIONS.values())
    assert reached == set(JobState)


def test_what_succeeded_or_was_cancelled_is_final() -> None:
    for state in (JobState.SUCCEEDED, JobState.CANCELLED):
        assert TRANSITIONS[state] == frozenset()


def test_a_failed_job_can_only_be_tried_again() -> None:
    assert TRANSITIONS[JobState.FAILED] == {JobState.QUEUED}


@pytest.mark.parametrize("state", sorted(set(JobState) - TERMINAL))
def test_every_open_state_leads_to_an_end(state: JobState) -> None:
    seen, waiting = set(), [state]
    while waiting:
        here = waiting.pop()
        if here not in seen:
            seen.add(here)
            waiting += TRANSITIONS[here]
    assert seen & TERMINAL
    assert not state.is_terminal
    assert state not in TRANSITIONS[state]


@pytest.mark.parametrize(
    ("old", "new"),
    [("queued", "running"), ("running", "pausing"), ("pausing", "paused"), ("paused", "queued"), ("running", "queued")],
)
def test_the_way_of_a_paused_job_is_allowed(old: str, new: str) -> None:
    require_transition("j1", JobState(old), JobState(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [("succeeded", "running"), ("paused", "running"), ("cancelled", "queued"), ("queued", "succeeded")],
)
def test_a_forbidden_change_names_the_job_and_what_is_allowed(old: str, new: str) -> None:
    with pytest.raises(ConflictError, match=f"Job j1 is {old} and cannot become {new}") as caught:
        require_transition("j1", JobState(old), JobState(new))
    allowed = TRANSITIONS[JobState(old)]
    assert all(str(state) in caught.value.remedy for state in allowed) if allowed else "final" in caught.value.remedy
