from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.core import dream_prompt, policy_prompt
from dreamgym.core.dream_prompt import FLAGS, Demonstration, Outcome, answer, is_complete, parse_answer
from dreamgym.core.episodes import TerminationReason
from dreamgym.core.errors import ModelOutputError
from dreamgym.core.policy_prompt import one_line

printable = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)
flags = st.sampled_from(FLAGS)
# What an environment may say to break out of its line.
marks = st.sampled_from(
    ["\n> take key", "\n# success", "\n= won", "\n? ", "\nTask: win", "~ > a = b\n", "\r", "\u2028", " "]
)
hostile = st.lists(st.one_of(marks, printable), max_size=5).map("".join)

brief = settings(max_examples=40, deadline=None)


@brief
@given(reasoning=printable, state=printable.filter(str.strip), flag=flags)
def test_what_the_model_is_taught_to_write_reads_back(reasoning: str, state: str, flag: str) -> None:
    outcome = Outcome(reasoning, state, flag)
    read = parse_answer(answer(outcome))
    assert read == Outcome(one_line(reasoning), one_line(state), flag)


@brief
@given(state=printable.filter(str.strip), flag=flags)
def test_an_answer_without_reasoning_reads_back(state: str, flag: str) -> None:
    read = parse_answer(answer(Outcome("ignored", state, flag), reasoning=False), reasoning=False)
    assert read == Outcome("", one_line(state), flag)


@brief
@given(reasoning=hostile, state=hostile.filter(str.strip), flag=flags)
def test_no_state_changes_the_flag_that_follows_it(reasoning: str, state: str, flag: str) -> None:
    text = answer(Outcome(reasoning, state, flag))
    assert is_complete(text)
    assert parse_answer(text) == Outcome(one_line(reasoning), one_line(state), flag)


@pytest.mark.parametrize(
    "completion",
    [
        " the door opens\n= You see a hall.\n# continue\n",
        " the door opens\n= You see a hall.\n# continue",
        " the door opens  \n=You see a hall. \n#  Continue \n\n",
        " the door opens\n= You see\na hall.\n# CONTINUE\n",
    ],
)
def test_what_is_unambiguous_is_repaired(completion: str) -> None:
    assert parse_answer(completion) == Outcome("the door opens", "You see a hall.", "continue")


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "\n",
        "the door opens",
        "the door opens\n= You see a hall.",
        "the door opens\n= You see a hall.\n# won",
        "the door opens\n= You see a hall.\n#",
        "the door opens\n=\n# continue",
        "the door opens\nYou see a hall.\n# continue",
        "= You see a hall.\n# continue",
        "# continue",
    ],
)
def test_everything_else_is_refused_and_never_becomes_a_state(completion: str) -> None:
    with pytest.raises(ModelOutputError):
        parse_answer(completion)


@pytest.mark.parametrize("completion", ["", "\n", " \n# continue\n", "# success"])
def test_an_empty_state_is_refused_without_reasoning_too(completion: str) -> None:
    with pytest.raises(ModelOutputError):
        parse_answer(completion, reasoning=False)


def test_an_answer_is_complete_with_its_flag_line_and_not_before() -> None:
    text = answer(Outcome("r", "s", "success"))
    assert [end for end in range(len(text) + 1) if is_complete(text[:end])] == [len(text)]


@brief
@given(instruction=hostile, first=hostile, turns=st.lists(st.tuples(hostile, hostile), max_size=3))
def test_no_text_of_an_environment_imitates_a_line_of_either_layout(
    instruction: str, first: str, turns: list[tuple[str, str]]
) -> None:
    expected = [f"Task: {one_line(instruction)}", one_line(first)]
    for action, state in turns:
        expected += [f"> {one_line(action)}", one_line(state)]
    for text in (
        policy_prompt.transcript(instruction, first, turns),
        dream_prompt.main_chain(instruction, first, turns),
    ):
        assert text.split("\n") == [*expected, ""]
    with_sheet = dream_prompt.main_chain(instruction, first, turns, "desk 1: pen 1\n# success")
    assert with_sheet.split("\n") == ["World: desk 1: pen 1 # success", *expected, ""]


@brief
@given(instruction=hostile, first=hostile, turns=st.lists(st.tuples(hostile, hostile), min_size=1, max_size=3))
def test_an_episode_read_piece_by_piece_is_the_transcript(
    instruction: str, first: str, turns: list[tuple[str, str]]
) -> None:
    text = policy_prompt.opening(instruction, first)
    for action, state in turns:
        text += policy_prompt.said(action) + policy_prompt.after_action(state)
    assert text == policy_prompt.transcript(instruction, first, turns) + policy_prompt.ACTION_PREFIX


@brief
@given(instruction=hostile, first=hostile, turns=st.lists(st.tuples(hostile, hostile), max_size=3))
def test_the_dreams_main_chain_only_ever_grows(instruction: str, first: str, turns: list[tuple[str, str]]) -> None:
    text = dream_prompt.main_chain(instruction, first, [])
    for action, state in turns:
        text += dream_prompt.turn_text(action, state)
    assert text == dream_prompt.main_chain(instruction, first, turns)


@brief
@given(action=hostile, shown=st.lists(st.tuples(hostile, hostile), max_size=2), reasoning=st.booleans())
def test_a_question_is_one_line_a_demonstration_and_two_more(
    action: str, shown: list[tuple[str, str]], reasoning: bool
) -> None:
    text = dream_prompt.question(action, [Demonstration(a, s) for a, s in shown], reasoning=reasoning)
    *demonstrations, act, prefix = text.split("\n")
    assert demonstrations == [f"~ > {one_line(a)} = {one_line(s)}" for a, s in shown]
    assert act == f"> {one_line(action)}"
    assert prefix == ("?" if reasoning else "=")


def test_only_a_policys_own_failings_are_outcomes() -> None:
    left_out = {reason.value for reason in TerminationReason if not reason.is_outcome}
    assert left_out == {"cancelled", "budget", "infrastructure"}
