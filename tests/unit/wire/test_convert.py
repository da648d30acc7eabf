from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.v1 import replay_pb2
from dreamgym.wire.convert import (
    dump_json,
    episode_from_proto,
    episode_to_proto,
    source_from_proto,
    source_to_proto,
    task_from_proto,
    task_to_proto,
    termination_from_proto,
    termination_to_proto,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text, lambda v: st.lists(v, max_size=2), max_leaves=4
)
objects = st.dictionaries(text, values, max_size=3)
tasks = st.builds(
    Task,
    id=text,
    instruction=text,
    initial_state=text,
    criterion=st.none() | objects.filter(bool),
    metadata=objects,
    split=st.sampled_from(["train", "valid", "test"]),
    parent_id=text,
)
transitions = st.builds(
    Transition,
    state=text,
    action=text,
    next_state=text,
    reward=st.floats(allow_nan=False),
    done=st.booleans(),
    success=st.booleans(),
    reasoning=text,
    confidence=st.floats(0, 1),
    valid_action=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(task=tasks)
def test_a_task_survives_the_wire(task: Task) -> None:
    message = env_pb.Task.FromString(task_to_proto(task).SerializeToString())
    assert task_from_proto(message) == task


@settings(max_examples=40, deadline=None)
@given(
    moves=st.lists(transitions, max_size=3),
    source=st.sampled_from(Source),
    reason=st.sampled_from(TerminationReason),
    metadata=objects,
)
def test_an_episode_survives_the_wire(
    moves: list[Transition], source: Source, reason: TerminationReason, metadata: dict[str, Any]
) -> None:
    task = Task("t1", "open it", initial_state=moves[0].state if moves else "", split="valid")
    episode = Episode("e1", task, source, tuple(moves), reason, metadata)
    message = episode_to_proto(episode, environment_id="env", job_id="j", policy_version="p", model_version="m")
    read = replay_pb2.StoredEpisode.FromString(message.SerializeToString())
    assert episode_from_proto(read) == episode
    assert [t.step for t in read.transitions] == list(range(len(moves)))
    assert read.success is (reason is TerminationReason.SUCCESS)
    assert (read.environment_id, read.job_id, read.policy_version, read.model_version) == ("env", "j", "p", "m")


@pytest.mark.parametrize("reason", TerminationReason)
def test_every_reason_has_its_own_number(reason: TerminationReason) -> None:
    assert termination_from_proto(termination_to_proto(reason)) is reason


def test_no_reason_and_an_unknown_reason_read_as_none() -> None:
    assert termination_from_proto(termination_to_proto(None)) is None
    assert termination_from_proto(99) is None


@pytest.mark.parametrize("source", Source)
def test_every_source_has_its_own_number(source: Source) -> None:
    assert source_from_proto(source_to_proto(source)) is source


def test_json_does_not_depend_on_the_order_of_its_keys() -> None:
    assert dump_json({"b": 1, "a": {"d": 2, "c": 3}}) == dump_json({"a": {"c": 3, "d": 2}, "b": 1})
