"""How recorded episodes are played: what players say, and what they must not."""

from __future__ import annotations

import importlib.util
import random

import pytest

from dreamgym.bridge.adapters.alfworld_engine import normalise_action
from dreamgym.bridge.adapters.household_behaviours import Noise, misread_goal, new_player, refused_action
from dreamgym.bridge.adapters.household_games import GameSpec, generate_games
from dreamgym.bridge.adapters.protocol import AdapterState
from dreamgym.bridge.adapters.recorder import plan_jobs

pytestmark = [
    pytest.mark.alfworld,
    pytest.mark.skipif(importlib.util.find_spec("alfworld") is None, reason="needs `pip install dreamgym[alfworld]`"),
]

ROOM = AdapterState(
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a desk 2, and a sinkbasin 1.",
    admissible_actions=("go to cabinet 1", "go to desk 2", "go to sinkbasin 1", "help", "inventory", "look"),
)


@pytest.fixture(scope="module")
def games() -> list[GameSpec]:
    return list(generate_games(30, seed=1))


def test_a_refused_action_is_never_an_admissible_one(games: list[GameSpec]) -> None:
    rng = random.Random(0)
    said = {refused_action(rng.choice(ROOM.admissible_actions), rng.choice(games), ROOM, rng) for _ in range(500)}
    assert not said & set(ROOM.admissible_actions)
    assert not {normalise_action(action) for action in said} & set(ROOM.admissible_actions)
    assert len(said) > 50


def test_a_misread_goal_differs_and_is_possible_in_the_room(games: list[GameSpec]) -> None:
    rng = random.Random(0)
    for game in games * 5:
        misread = misread_goal(game, rng)
        if misread is not None:
            goal = (misread.task_type, misread.object, misread.receptacle)
            assert goal != (game.task_type, game.object, game.receptacle)
            assert misread.object in {identifier.split("|")[0] for identifier, _ in game.objects}


def test_players_with_the_same_chance_say_the_same(games: list[GameSpec]) -> None:
    for behaviour in ("noisy_expert", "random"):
        said = [new_player(behaviour, games[0], ROOM, random.Random(4), Noise()).act(ROOM) for _ in range(3)]
        assert len(set(said)) == 1


def test_episodes_are_shared_among_games_and_behaviours_as_asked(games: list[GameSpec]) -> None:
    jobs = plan_jobs(games, 100, mix={"planned": 0.5, "random": 0.25, "expert": 0.25}, seed=0, max_steps=15)
    played = [job.behaviour for job in jobs]
    assert (played.count("planned"), played.count("random"), played.count("expert")) == (50, 25, 25)
    per_game = [sum(job.spec is game for job in jobs) for game in games]
    assert max(per_game) - min(per_game) <= 1
