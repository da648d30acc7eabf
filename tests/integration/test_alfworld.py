"""The real ALFWorld engine behind the adapter, on generated games and on game files where they are at hand."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dreamgym.bridge.adapters.alfworld_data import import_alfworld
from dreamgym.bridge.adapters.alfworld_engine import AlfworldAdapter, clean_observation, normalise_action
from dreamgym.bridge.adapters.household_behaviours import Noise
from dreamgym.bridge.adapters.household_criteria import criterion_for, success_criterion
from dreamgym.bridge.adapters.household_games import TASK_TYPES, GameSpec, generate_game, generate_games
from dreamgym.bridge.adapters.household_pddl import game_data
from dreamgym.bridge.adapters.protocol import EnvironmentAdapter, EpisodeStateError, TaskSpecError
from dreamgym.bridge.adapters.recorder import main, plan_jobs, record, record_episode
from dreamgym.bridge.adapters.registry import create_adapter
from dreamgym.core.criteria import Evidence, is_met, validate_criterion

ROOT = Path(__file__).resolve().parents[2]
GAME_FILES = Path(os.environ.get("DREAMGYM_TEST_DATA", ROOT.parent / "shared" / "data")) / "alfworld"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.alfworld,
    pytest.mark.skipif(importlib.util.find_spec("alfworld") is None, reason="needs `pip install dreamgym[alfworld]`"),
]


@pytest.fixture(scope="module")
def adapter() -> Iterator[AlfworldAdapter]:
    adapter = AlfworldAdapter()
    yield adapter
    adapter.close()


def start(adapter: AlfworldAdapter, spec: GameSpec, **more: Any) -> Any:
    return adapter.reset({"game": spec.to_json(), **more}, seed=0)


def test_the_registry_builds_an_adapter_that_describes_itself() -> None:
    adapter = create_adapter("alfworld")
    assert isinstance(adapter, EnvironmentAdapter)
    info = adapter.describe()
    assert (info.name, info.lists_admissible_actions) == ("alfworld", True)
    assert "take (object) from (receptacle)" in info.description
    adapter.close()


def test_the_first_state_is_the_room_without_banner_and_task(adapter: AlfworldAdapter) -> None:
    spec = generate_game(3)
    state = start(adapter, spec)
    assert state.state.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert "\n" not in state.state
    assert "task" not in state.state
    assert adapter.instruction == spec.instruction
    assert (state.reward, state.done, state.success, state.valid_action, state.expert_action) == (
        0,
        False,
        False,
        True,
        None,
    )
    assert "look" in state.admissible_actions


def test_a_refused_action_is_marked_and_changes_nothing(adapter: AlfworldAdapter) -> None:
    before = start(adapter, generate_game(3))
    after = adapter.step("take unicorn 1 from cloud 1")
    assert not after.valid_action
    assert after.state == "Nothing happens."
    assert after.admissible_actions == before.admissible_actions


def test_every_admissible_action_is_accepted(adapter: AlfworldAdapter) -> None:
    rng = random.Random(0)
    for spec in generate_games(6, seed=11):
        state = start(adapter, spec)
        for _ in range(12):
            state = adapter.step(rng.choice(state.admissible_actions))
            assert state.valid_action
            if state.done:
                break


def test_actions_in_the_older_wording_or_with_odd_spaces_are_understood(adapter: AlfworldAdapter) -> None:
    assert normalise_action("put mug 1 in/on desk 2") == "move mug 1 to desk 2"
    assert normalise_action("  Put  mug 1 on desk 2.\n") == "move mug 1 to desk 2"
    assert normalise_action("go   to\tdesk 1") == "go to desk 1"
    state = start(adapter, generate_game(3))
    going = next(action for action in state.admissible_actions if action.startswith("go to"))
    assert adapter.step(f"  {going.upper()}  ").valid_action


def test_the_same_actions_give_the_same_episode_and_a_reset_forgets(adapter: AlfworldAdapter) -> None:
    spec = generate_game(12)

    def play() -> list[str]:
        state, rng, seen = start(adapter, spec), random.Random(1), []
        for _ in range(10):
            state = adapter.step(rng.choice(state.admissible_actions))
            seen.append(state.state)
            if state.done:
                break
        return seen

    assert play() == play()


def test_the_cached_engine_behaves_as_the_stock_one(adapter: AlfworldAdapter) -> None:
    wrappers = import_alfworld("alfworld.agents.environment.alfred_tw_env")
    textworld = import_alfworld("textworld")
    environment = import_alfworld("textworld.envs").PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))
    stock = wrappers.AlfredInfos(wrappers.AlfredDemangler(environment))
    for spec in generate_games(6, seed=4):
        rng = random.Random(spec.game_id)
        stock.load(game_data(spec))
        theirs, ours = stock.reset(), start(adapter, spec)
        assert f"Your task is to: {spec.instruction}." in theirs["feedback"]
        for _ in range(15):
            assert ours.state == clean_observation(theirs["feedback"])
            assert list(ours.admissible_actions) == theirs["admissible_commands"]
            assert ours.success == theirs["won"]
            if ours.done:
                break
            action = rng.choice([*ours.admissible_actions, "take nothing 1 from nowhere 1"])
            ours, (theirs, _, _) = adapter.step(action), stock.step(action)


def test_the_handcoded_expert_plays_on_request(adapter: AlfworldAdapter) -> None:
    spec = generate_game(1, task_type="pick_clean_then_place_in_recep")
    state = start(adapter, spec, expert=True)
    for _ in range(40):
        assert state.expert_action is not None
        state = adapter.step(state.expert_action)
        if state.done:
            break
    assert (state.success, state.reward) == (True, 1.0)


def test_a_step_without_a_running_episode_is_an_error_not_a_reward() -> None:
    adapter = AlfworldAdapter()
    with pytest.raises(EpisodeStateError, match="reset"):
        adapter.step("look")
    adapter.close()
    adapter.close()


def test_a_missing_or_foreign_game_file_is_named(
    adapter: AlfworldAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(TaskSpecError, match="alfworld-download"):
        adapter.reset({"game_file": "json_2.1.1/nowhere"}, 0)
    with pytest.raises(TaskSpecError, match="outside"):
        adapter.reset({"game_file": "../../etc/passwd"}, 0)
    (tmp_path / "game.tw-pddl").write_text("{}")
    with pytest.raises(TaskSpecError, match="lacks grammar, pddl_domain, pddl_problem"):
        adapter.reset({"game_file": "game.tw-pddl"}, 0)
    monkeypatch.delenv("ALFWORLD_DATA")
    with pytest.raises(TaskSpecError, match="not set"):
        adapter.reset({"game_file": "game.tw-pddl"}, 0)


def test_engines_opened_and_closed_many_times_do_not_crash_the_process() -> None:
    code = (
        "from dreamgym.bridge.adapters.registry import create_adapter\n"
        "a, b = create_adapter('alfworld'), create_adapter('alfworld')\n"
        "b.reset({}, 1)\n"
        "for round in range(5):\n"
        "    a.reset({'rooms': 'small', 'expert': round % 2 == 0}, round); b.step('look'); a.step('look'); a.close()\n"
        "print(b.step('look').state)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "You are" in done.stdout


def test_the_home_directory_stays_untouched_and_spacy_unloaded(tmp_path: Path) -> None:
    code = (
        "import sys; from dreamgym.bridge.adapters.registry import create_adapter;"
        "a = create_adapter('alfworld'); a.reset({}, 1); a.close(); sys.exit('spacy' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"}
    environment |= {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=120)
    assert done.returncode == 0
    assert not (tmp_path / "home").exists()


def test_the_searcher_wins_small_games_within_fifteen_steps(adapter: AlfworldAdapter) -> None:
    games = list(generate_games(30, seed=8))
    jobs = plan_jobs(games, 30, mix={"planned": 1.0}, seed=0, max_steps=15)
    episodes = [record_episode(adapter, job) for job in jobs]
    assert sum(episode["success"] for episode in episodes) >= 27
    assert all(step["valid"] for episode in episodes for step in episode["steps"])


def test_the_criterion_agrees_with_the_engine_at_every_step(adapter: AlfworldAdapter) -> None:
    games = list(generate_games(24, seed=21))
    noise = Noise(wander=0.3, refused=0.1, misread=0.7)
    jobs = plan_jobs(
        games, 40, mix={"noisy_expert": 0.7, "random": 0.2, "expert": 0.1}, seed=2, max_steps=20, noise=noise
    )
    verdicts = []
    for job in jobs:
        episode = record_episode(adapter, job)
        validate_criterion(episode["criterion"])
        turns = [(step["action"], step["state"]) for step in episode["steps"]]
        for number, step in enumerate(episode["steps"], start=1):
            verdict = is_met(success_criterion(job.spec), Evidence(turns[:number]))
            assert verdict == step["success"], (job.spec.instruction, turns[:number])
        verdicts.append(episode["success"])
    assert 5 < sum(verdicts) < 38


def test_recording_on_two_processes_gives_what_one_gives() -> None:
    games = list(generate_games(4, seed=6))
    jobs = plan_jobs(games, 8, mix={"planned": 0.5, "random": 0.5}, seed=1, max_steps=6)
    assert list(record(jobs, workers=2)) == list(record(jobs, workers=1))


def test_the_command_line_writes_episodes_and_tasks(tmp_path: Path) -> None:
    out, tasks = tmp_path / "episodes.jsonl.gz", tmp_path / "tasks.jsonl"
    asked = ["--out", str(out), "--tasks", str(tasks), "--episodes", "8", "--games", "6", "--split", "valid"]
    assert main([*asked, "--workers", "1", "--max-steps", "5"]) == 0
    with gzip.open(out, "rt", encoding="utf-8") as lines:
        episodes = [json.loads(line) for line in lines]
    listed = [json.loads(line) for line in tasks.read_text().splitlines()]
    assert (len(episodes), len(listed)) == (8, 6)
    assert {task["metadata"]["task_type"] for task in listed} == set(TASK_TYPES)
    assert {episode["task_id"] for episode in episodes} == {task["task_id"] for task in listed}
    for episode in episodes:
        assert episode["split"] == "valid"
        assert episode["termination"] == ("success" if episode["success"] else "step_limit")
        assert len(episode["steps"]) <= 5
        assert {"action", "state", "reward", "done", "success", "valid"} == episode["steps"][0].keys()


def _game_files() -> list[Path]:
    return sorted(GAME_FILES.glob("**/game.tw-pddl"))


@pytest.mark.skipif(not GAME_FILES.is_dir(), reason=f"needs ALFWorld game files in {GAME_FILES}")
def test_game_files_replay_their_transcripts_and_meet_their_criteria(
    adapter: AlfworldAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(GAME_FILES))
    by_task: dict[str, list[Path]] = {}
    for path in _game_files():
        by_task.setdefault(path.parts[-3].split("-")[0], []).append(path)
    chosen = [*(paths[0] for paths in by_task.values()), *GAME_FILES.glob("real_trial/**/game.tw-pddl")]
    for path in chosen:
        transcript = json.loads(path.with_name("transcript_planner.json").read_text())["steps"]
        parameters = json.loads(path.with_name("traj_data.json").read_text())
        named = parameters["pddl_params"]
        criterion = criterion_for(
            parameters["task_type"],
            thing=named["object_target"],
            receptacle=named["parent_target"],
            lamp=named["toggle_target"],
        )
        state = adapter.reset({"game_file": str(path.parent.relative_to(GAME_FILES))}, 0)
        assert state.state == clean_observation(transcript[0]["obs"])
        assert adapter.instruction in transcript[0]["obs"]
        turns = []
        for before, after in itertools.pairwise(transcript):
            state = adapter.step(before["action"])
            turns.append((before["action"], state.state))
            assert state.state == after["obs"]
            assert list(state.admissible_actions) == after["admissible"]
            assert is_met(criterion, Evidence(turns)) == state.success == after["won"]
        assert state.success
