"""The frames between the bridge and its adapter processes."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.bridge import frames
from dreamgym.bridge.adapters.protocol import AdapterState

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(st.builds(AdapterState, words, st.floats(-1, 1), admissible_actions=st.lists(words, max_size=3).map(tuple)))
def test_a_state_comes_through_a_frame_as_it_was(state: AdapterState) -> None:
    message = frames.read_frame(io.BytesIO(frames.encode(frames.state_to_json(state))))
    assert message is not None
    assert frames.state_from_json(message) == state


@given(st.data())
def test_a_stream_that_ends_within_a_frame_gives_nothing(data: st.DataObject) -> None:
    whole = frames.encode({"call": "step", "action": "look"})
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert frames.read_frame(io.BytesIO(whole[:cut])) is None


@pytest.mark.parametrize("body", [b"[]", b"nonsense", b"1"])
def test_a_body_that_is_no_object_is_an_error(body: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.decode(body)


def test_a_header_that_announces_too_much_is_an_error() -> None:
    with pytest.raises(frames.FrameError):
        frames.body_length(b"\xff\xff\xff\xff")


@pytest.mark.parametrize("value", [{}, {"state": "a"}, {"state": "a", "admissible_actions": [], "extra": 1}])
def test_an_answer_that_is_no_state_is_an_error(value: frames.Message) -> None:
    with pytest.raises(frames.FrameError):
        frames.state_from_json(value)
