"""Generated games: deterministic, distinct, split by room, never won at the start."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter

import pytest

from dreamgym.bridge.adapters.alfworld_data import receptacle_type, tables
from dreamgym.bridge.adapters.household_games import (
    APPLIANCE,
    SPLIT_PLANS,
    TASK_TYPES,
    GameSpec,
    generate_game,
    generate_games,
)
from dreamgym.bridge.adapters.household_pddl import mangle, problem_text
from dreamgym.bridge.adapters.protocol import TaskSpecError

pytestmark = [
    pytest.mark.alfworld,
    pytest.mark.skipif(importlib.util.find_spec("alfworld") is None, reason="needs `pip install dreamgym[alfworld]`"),
]


@pytest.fixture(scope="module")
def games() -> list[GameSpec]:
    return [game for split in SPLIT_PLANS for game in generate_games(60, seed=5, split=split)]  # type: ignore[arg-type]


def test_the_same_seed_makes_the_same_game() -> None:
    assert generate_game(7) == generate_game(7)
    assert generate_game(7) != generate_game(8)


def test_a_specification_survives_json_and_stays_small(games: list[GameSpec]) -> None:
    for game in [*games, *generate_games(12, seed=1, rooms="medium")]:
        text = json.dumps(game.to_json())
        assert GameSpec.from_json(json.loads(text)) == game
        assert len(text) < 2048


def test_games_are_distinct_and_task_types_balanced(games: list[GameSpec]) -> None:
    assert len({game.layout for game in games}) == len({game.game_id for game in games}) == len(games)
    assert set(Counter(game.task_type for game in games).values()) == {len(games) // len(TASK_TYPES)}


def test_no_floor_plan_is_in_two_splits(games: list[GameSpec]) -> None:
    plans = {split: {game.floor_plan for game in games if game.split == split} for split in SPLIT_PLANS}
    assert not plans["train"] & plans["valid"]
    assert not plans["train"] & plans["test"]
    assert not plans["valid"] & plans["test"]
    for game in games:
        assert int(game.floor_plan.removeprefix("FloorPlan")) % 100 in SPLIT_PLANS[game.split]


def test_small_rooms_hold_what_the_task_needs(games: list[GameSpec]) -> None:
    for game in games:
        kinds = [receptacle_type(identifier) for identifier in game.receptacles]
        things = [identifier.split("|")[0] for identifier, _ in game.objects]
        assert 4 <= len(kinds) <= 6
        assert 5 <= len(things) <= 9
        assert game.object in things
        assert not game.receptacle or game.receptacle in kinds
        assert not game.lamp or things.count(game.lamp) == 1
        assert APPLIANCE.get(game.task_type, kinds[0]) in kinds


def test_things_lie_only_where_alfreds_table_allows(games: list[GameSpec]) -> None:
    for game in games:
        for identifier, index in game.objects:
            thing = identifier.split("|")[0]
            if thing != game.lamp:
                assert thing in tables().can_contain[receptacle_type(game.receptacles[index])]


def test_the_goal_does_not_hold_at_the_start(games: list[GameSpec]) -> None:
    for game in games:
        inside = sum(
            identifier.split("|")[0] == game.object and receptacle_type(game.receptacles[index]) == game.receptacle
            for identifier, index in game.objects
        )
        assert inside <= {"pick_and_place_simple": 0, "pick_two_obj_and_place": 1}.get(game.task_type, 2)


def test_every_receptacle_has_a_place_of_its_own() -> None:
    for game in generate_games(6, seed=2, rooms="full"):
        lines = [line for line in problem_text(game).splitlines() if line.startswith("(receptacleAtLocation")]
        places = [line.rstrip(")").split()[2] for line in lines]
        assert len(places) == len(set(places)) == len(game.receptacles)


def test_identifiers_are_mangled_as_alfworld_reads_them() -> None:
    assert mangle("Mug|+01.20|-00.50") == "Mug_bar__plus_01_dot_20_bar__minus_00_dot_50"


@pytest.mark.parametrize("wrong", [{"task_type": "fly"}, {"rooms": "huge"}, {"split": "dev"}])
def test_an_unknown_choice_is_refused_with_the_choices(wrong: dict[str, str]) -> None:
    with pytest.raises(TaskSpecError, match="rooms small, medium, full"):
        generate_game(1, **wrong)  # type: ignore[arg-type]


def test_a_broken_specification_is_refused() -> None:
    whole = generate_game(1).to_json()
    for broken in ({**whole, "objects": [["Mug|+1", 99]]}, {k: v for k, v in whole.items() if k != "floor_plan"}):
        with pytest.raises(TaskSpecError):
            GameSpec.from_json(broken)
