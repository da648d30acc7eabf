"""What is refused before it reaches the database, and how the refusal names its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.core.episodes import Source
from dreamgym.core.errors import InvalidInputError
from dreamgym.replay.reading import read_episode, read_queries
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.writing import episode_message
from dreamgym.v1 import replay_pb2 as pb

SETTINGS = ReplaySettings(replay_episode_transitions_max=3, replay_text_characters_max=1000)


def valid() -> pb.StoredEpisode:
    return pb.StoredEpisode(
        episode_id="e",
        environment_id="env",
        source=pb.SOURCE_SEED,
        split="train",
        termination="success",
        transitions=[
            pb.StoredTransition(step=0, state="s", action="look", next_state="n", confidence=1.0),
            pb.StoredTransition(step=1, state="s", action="go", next_state="n", confidence=1.0),
        ],
    )


def set_field(name: str, value: object) -> Callable[[pb.StoredEpisode], None]:
    return lambda episode: setattr(episode, name, value)


def set_in_step_1(name: str, value: object) -> Callable[[pb.StoredEpisode], None]:
    return lambda episode: setattr(episode.transitions[1], name, value)


def repeat_step(episode: pb.StoredEpisode) -> None:
    episode.transitions[1].step = 0


def lengthen(episode: pb.StoredEpisode) -> None:
    episode.transitions.extend(pb.StoredTransition(step=step, action="a", confidence=1.0) for step in range(2, 9))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (set_field("episode_id", ""), "Episode '': episode_id is empty"),
        (set_field("environment_id", " "), "environment_id is empty"),
        (set_field("episode_id", "e" * 201), "episode_id has 201 characters"),
        (set_field("source", 0), "source 0 is not known"),
        (set_field("source", 77), "source 77 is not known"),
        (set_field("termination", "bored"), "termination 'bored' is none of"),
        (set_field("instruction", "a\0b"), "instruction has a NUL character at position 1"),
        (set_field("metadata", "{"), "metadata is not JSON"),
        (set_field("metadata", "[1]"), "metadata is a JSON list"),
        (set_field("metadata", '{"a": "\\u0000"}'), "metadata has a NUL character"),
        (set_field("metadata", '{"a": NaN}'), "metadata is not JSON"),
        (set_in_step_1("reward", float("inf")), "Episode 'e': step 1: reward inf is not a finite number"),
        (set_in_step_1("confidence", 1.5), "step 1: confidence 1.5"),
        (set_in_step_1("confidence", float("nan")), "step 1: confidence nan"),
        (set_in_step_1("action", "  "), "step 1: action is empty"),
        (set_in_step_1("state", "x\0"), "step 1: state has a NUL character"),
        (set_in_step_1("next_state", "x" * 1001), "step 1: next_state has 1001 characters, more than 1000"),
        (set_in_step_1("step", -1), "step -1: the step is negative"),
        (repeat_step, "step 0 follows step 0"),
        (lengthen, "more than 3 transitions"),
        (lambda episode: episode.ClearField("transitions"), "it has no transitions"),
    ],
)
def test_a_spoilt_episode_is_refused_with_its_place(spoil: Callable[[pb.StoredEpisode], None], message: str) -> None:
    episode = valid()
    spoil(episode)
    with pytest.raises(InvalidInputError) as caught:
        read_episode(episode, SETTINGS)
    assert message in caught.value.message
    assert caught.value.remedy


def test_a_backslash_before_u0000_is_ordinary_text() -> None:
    episode = valid()
    episode.metadata = '{"path": "C:\\\\u0000"}'
    assert read_episode(episode, SETTINGS).metadata == {"path": "C:\\u0000"}


def test_an_episode_without_a_split_belongs_to_training() -> None:
    episode = valid()
    episode.split = ""
    assert read_episode(episode, SETTINGS).split == "train"


@given(
    state=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50),
    reward=st.floats(allow_nan=False, allow_infinity=False),
    confidence=st.floats(0.0, 1.0),
    source=st.sampled_from(list(Source)),
)
def test_what_is_read_is_written_back_the_same(state: str, reward: float, confidence: float, source: Source) -> None:
    episode = valid()
    episode.source = pb.Source.Value(f"SOURCE_{source.name}")
    episode.transitions[0].state = state
    episode.transitions[0].reward = reward
    episode.transitions[0].confidence = confidence
    assert episode_message(read_episode(episode, SETTINGS)) == episode


def test_a_search_of_too_many_queries_is_refused() -> None:
    query = pb.SearchQuery(state="s", action="a")
    with pytest.raises(InvalidInputError, match="257 queries"):
        read_queries(pb.SearchRequest(queries=[query] * 257), SETTINGS)
