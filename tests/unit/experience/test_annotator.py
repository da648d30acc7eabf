from __future__ import annotations

from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.experience.annotator import annotate

ROOM = "You are in a room. You see a desk 1, a drawer 1, and a shelf 1."
Steps = list[tuple[str, str, bool]]


def episode(steps: Steps, initial_state: str = ROOM, task: str = "t", success: bool = False) -> Episode:
    transitions, state = [], initial_state
    for number, (action, after, valid) in enumerate(steps, 1):
        won = success and number == len(steps)
        transitions.append(Transition(state, action, after, valid_action=valid, success=won, done=won))
        state = after
    reason = TerminationReason.SUCCESS if success else TerminationReason.STEP_LIMIT
    return Episode("e", Task(task, "put a mug in drawer", initial_state), Source.SEED, tuple(transitions), reason)


PLAYED: Steps = [
    ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a mug 1, and a pen 1.", True),
    ("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1.", True),
    ("take pen 1 from shelf 1", "Nothing happens.", False),
    ("go to shelf 1", "Nothing happens.", False),
    ("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed.", True),
    ("move mug 1 to drawer 1", "Nothing happens.", False),
    ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see nothing.", True),
    ("open drawer 1", "Nothing happens.", False),
    ("move mug 1 to drawer 1", "You move the mug 1 to the drawer 1.", True),
    ("examine drawer 1", "The drawer 1 is open. In it, you see a mug 1.", True),
    ("take mug 1 from desk 1", "Nothing happens.", False),
    ("take pen 1 from drawer 1", "Nothing happens.", False),
    ("open shelf 1", "Nothing happens.", False),
    ("move pen 1 to drawer 1", "Nothing happens.", False),
    ("go to moon 1", "Nothing happens.", False),
    ("please go", "Nothing happens.", False),
    ("close drawer 1", "You close the drawer 1.", True),
]


def test_each_step_gets_the_facts_that_its_next_state_is_made_of() -> None:
    (annotated,) = annotate([episode(PLAYED, success=True)])
    assert annotated.reasoning == (
        "valid; at shelf 1; holding nothing; sheet: shelf 1 has mug 1, pen 1.",
        "valid; at shelf 1; holding mug 1.",
        "impossible: holding mug 1.",
        "impossible: already at shelf 1.",
        "valid; at drawer 1; holding mug 1; drawer 1 is closed.",
        "impossible: drawer 1 is closed.",
        "valid; at drawer 1; holding mug 1; sheet: drawer 1 has nothing.",
        "impossible: drawer 1 is open.",
        "valid; at drawer 1; holding nothing.",
        "valid; at drawer 1; holding nothing; sheet: drawer 1 has mug 1.",
        "impossible: not at desk 1.",
        "impossible: pen 1 is not here.",
        "impossible: not at shelf 1.",
        "impossible: not holding pen 1.",
        "impossible: no moon 1.",
        "impossible: not a command.",
        "valid; at drawer 1; holding nothing; drawer 1 is closed. task done.",
    )
    assert annotated.world_sheet == "drawer 1: nothing; shelf 1: mug 1, pen 1"


def test_episodes_of_one_world_share_what_any_of_them_reveals_and_others_do_not() -> None:
    desk: Steps = [("go to desk 1", "You arrive at desk 1. On the desk 1, you see a vase 1.", True)]
    first, second, other = annotate([episode(PLAYED), episode(desk), episode(desk, task="other")])
    assert first.world_sheet == second.world_sheet == "desk 1: vase 1; drawer 1: nothing; shelf 1: mug 1, pen 1"
    assert other.world_sheet == "desk 1: vase 1"


def test_states_without_places_are_told_by_what_is_new() -> None:
    page = "[1] link: Home\n[2] button: Search"
    steps: Steps = [
        ("click [2]", f"{page}\n[3] text: 4 results", True),
        ("scroll", f"{page}\n[3] text: 4 results", True),
    ]
    (annotated,) = annotate([episode(steps, initial_state=page)])
    assert annotated.reasoning == ("valid; shows [3] text: 4 results.", "valid; nothing changes.")
    assert annotated.world_sheet == ""


def test_an_episode_without_steps_has_no_traces() -> None:
    (annotated,) = annotate([episode([])])
    assert annotated.reasoning == ()
