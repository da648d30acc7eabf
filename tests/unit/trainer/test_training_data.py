"""Which tokens of an episode are trained on, and which episodes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dreamgym.core import policy_prompt
from dreamgym.core.action_choices import ActionRules
from dreamgym.core.consistency import Consistency
from dreamgym.core.dream_prompt import Demonstration, parse_answer
from dreamgym.core.episodes import Episode, TerminationReason
from dreamgym.trainer.action_space import ActionSpace, allowed_tokens
from dreamgym.trainer.branch_packing import PackedSequence, prediction_targets
from dreamgym.trainer.experience_data import (
    AnnotatedEpisode,
    experience_sequence,
    outcome_of,
    split_heldout,
    worlds_of,
)
from dreamgym.trainer.policy_data import choose_demonstrations, demonstration, sampled_sequence

MakeEpisode = Callable[..., Episode]
TURNS = [("go to door 1", "You are at the door 1."), ("fly", "Nothing happens."), ("open door 1", "It is open.")]


def encode(text: str) -> list[int]:
    return list(text.encode())


def trained(packed: PackedSequence) -> str:
    """The text of the tokens whose prediction is in the loss."""
    targets, weights = prediction_targets(packed)
    return bytes(t for t, w in zip(targets, weights, strict=True) if w > 0).decode()


def test_a_demonstration_trains_valid_actions_with_their_end_of_turn_and_nothing_else(
    make_episode: MakeEpisode,
) -> None:
    packed = demonstration(make_episode("e", TURNS, refused=[1]), encode)
    assert trained(packed) == " go to door 1\n open door 1\n"


def test_a_demonstration_shows_what_the_policy_will_see(make_episode: MakeEpisode) -> None:
    packed = demonstration(make_episode("e", TURNS, refused=[1]), encode)
    whole = policy_prompt.transcript("open the door", "A room.", TURNS)
    assert whole == bytes(packed.ids).decode() + "It is open.\n"


def test_a_played_episode_trains_exactly_what_was_sampled() -> None:
    text = "A room.\n> look\nThe same room.\n>"
    sampled = [8 < place <= 14 for place in range(len(text))]
    packed = sampled_sequence(encode(text), sampled)
    assert bytes(packed.ids).decode() == text
    assert trained(packed) == " look\n"


RULES_OF_DOORS = ActionRules(
    action_format="go to (place) | open (place) | wait",
    consistency=Consistency(rules=("already", "reach"), verbs=()),
    refusals=("Nothing happens.",),
)
DOORS = [("go to door 1", "You are at the door 1."), ("open door 1", "It is open."), ("dance", "You dance.")]


def test_a_demonstration_with_choices_trains_only_what_was_chosen(make_episode: MakeEpisode) -> None:
    """Two doors: only the first letter of the verb and the door's number are free; `dance` is no choice, so all of it is."""
    episode = make_episode("e", DOORS, first_state="You see a door 1, and a door 2.")
    packed = demonstration(episode, encode, RULES_OF_DOORS)
    assert trained(packed) == "g1" + "o" + " dance\n"
    free = [tuple(b"gw"), tuple(b"12"), tuple(b"gow")]
    assert packed.allowed == free + [()] * len(" dance\n")
    space = ActionSpace(frozenset(encode("dance\n")), 256, RULES_OF_DOORS)
    allowed = allowed_tokens(packed, space)
    assert [tuple(row.nonzero()[:, 0].tolist()) for row in allowed[:3]] == free
    assert set(encode("You see a door dance\n")) <= set(allowed[3].nonzero()[:, 0].tolist())


def test_choices_that_do_not_fit_the_targets_are_refused() -> None:
    packed = sampled_sequence(encode("ab"), [False, True], [(1,), (2,)])
    with pytest.raises(ValueError, match="2 sets of choices for 1 predicted"):
        allowed_tokens(packed, ActionSpace(frozenset(), 256))


def test_demonstrations_are_successful_frugal_and_spread_over_tasks(make_episode: MakeEpisode) -> None:
    episodes = [
        make_episode("b-wasteful", TURNS, task="b", refused=[1]),
        make_episode("b-clean", TURNS, task="b"),
        make_episode("a-lost", TURNS, task="a", termination=TerminationReason.STEP_LIMIT),
        make_episode("a-clean", TURNS, task="a"),
        make_episode("a-empty", [], task="a"),
        make_episode("c-clean", TURNS, task="c"),
    ]
    chosen = [e.id for e in choose_demonstrations(episodes, 10)]
    assert chosen == ["a-clean", "b-clean", "c-clean", "b-wasteful"]
    assert [e.id for e in choose_demonstrations(episodes, 2)] == chosen[:2]
    for seed in range(5):
        shuffled = random.Random(seed).sample(episodes, len(episodes))
        assert [e.id for e in choose_demonstrations(shuffled, 10)] == chosen


def test_an_outcome_carries_the_flag_of_its_step(make_episode: MakeEpisode) -> None:
    won, lost = make_episode("w", TURNS), make_episode("l", TURNS, termination=TerminationReason.FAILURE)
    cut = make_episode("c", TURNS, termination=TerminationReason.STEP_LIMIT)
    assert [outcome_of(won, step, "").flag for step in range(3)] == ["continue", "continue", "success"]
    assert outcome_of(lost, 2, "").flag == "failure"
    assert outcome_of(cut, 2, "").flag == "continue"
    assert outcome_of(won, 0, "why").next_state == "You are at the door 1."


def annotated(episode: Episode) -> AnnotatedEpisode:
    shown = tuple((Demonstration("jump", f"You land {step}."),) for step in range(len(episode.transitions)))
    return AnnotatedEpisode(episode, ("near", "no wings", "a key fits"), "door 1: nothing", shown)


def test_the_experience_model_learns_its_answers_and_never_questions_or_history(make_episode: MakeEpisode) -> None:
    packed = experience_sequence(annotated(make_episode("e", TURNS)), encode, random.Random(0), keep_demonstrations=1.0)
    text = trained(packed)
    answers = [part + "\n" for part in text.split("\n#")]
    assert text.count("# continue\n") == 2
    assert text.endswith(" a key fits\n= It is open.\n# success\n")
    assert not any(words in text for words in ("jump", "World:", "Task:", "go to door 1"))
    assert parse_answer(answers[0] + "# continue").next_state == "You are at the door 1."


def test_a_branch_sees_the_history_before_its_step_and_not_its_own_outcome(make_episode: MakeEpisode) -> None:
    packed = experience_sequence(annotated(make_episode("e", TURNS)), encode, random.Random(0))
    main = bytes(t for t, b in zip(packed.ids, packed.branch, strict=True) if b == 0).decode()
    assert main.startswith("World: door 1: nothing\nTask: open the door\nA room.\n")
    for number, (action, state) in enumerate(TURNS, start=1):
        fork = next(f for f, b in zip(packed.fork, packed.branch, strict=True) if b == number)
        assert state not in main[:fork]
        assert main[fork:].startswith(f"> {action}\n{state}\n")


def test_some_steps_are_learnt_without_demonstrations(make_episode: MakeEpisode) -> None:
    def shown(keep: float) -> int:
        packed = experience_sequence(
            annotated(make_episode("e", TURNS)), encode, random.Random(0), keep_demonstrations=keep
        )
        return bytes(packed.ids).decode().count("~ > jump = You land")

    assert (shown(1.0), shown(0.0)) == (3, 0)


def test_held_out_episodes_share_no_task_with_the_others(make_episode: MakeEpisode) -> None:
    episodes = [make_episode(f"e{i}", TURNS, task=f"t{i % 10}") for i in range(40)]
    kept, heldout = split_heldout(episodes, 0.3)
    assert {e.task.id for e in kept}.isdisjoint(e.task.id for e in heldout)
    assert sorted(e.id for e in kept + heldout) == sorted(e.id for e in episodes)
    assert len({e.task.id for e in heldout}) == 3
    _, again = split_heldout(list(reversed(episodes)), 0.3)
    assert {e.id for e in again} == {e.id for e in heldout}
    assert split_heldout(episodes, 0.0)[1] == []


def test_a_world_is_kept_once_for_its_task_and_first_state(make_episode: MakeEpisode) -> None:
    worlds = worlds_of([annotated(make_episode(name, TURNS, task=task)) for name, task in ("ax", "bx", "cy")])
    assert [world["task_id"] for world in worlds] == ["x", "y"]
    assert worlds[0]["initial_state"] == "A room."
    assert worlds[0]["sheet"] == "door 1: nothing"
