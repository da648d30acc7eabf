"""ALFWorld's text engine behind the adapter protocol: one game at a time in this process."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamgym.bridge.adapters.alfworld_data import DATA_VARIABLE, import_alfworld
from dreamgym.bridge.adapters.household_games import GameSpec, generate_game
from dreamgym.bridge.adapters.household_pddl import game_data
from dreamgym.bridge.adapters.protocol import AdapterInfo, AdapterState, EpisodeStateError, TaskSpecError
from dreamgym.core.errors import AdapterError

DESCRIPTION = """\
A household in text (ALFWorld). You walk through a room, open and close receptacles, carry one thing at a time, and \
clean, heat or cool it with a sinkbasin, microwave or fridge. The goal is an everyday task such as `put a clean mug in \
cabinet`. An action is one line in one of these forms, with the names and numbers as they appear in the text:
go to (receptacle) | open (receptacle) | close (receptacle) | take (object) from (receptacle) | \
move (object) to (receptacle) | examine (object or receptacle) | use (lamp) | clean (object) with (sinkbasin) | \
heat (object) with (microwave) | cool (object) with (fridge) | slice (object) with (knife) | inventory | look | help
Anything else changes nothing and is answered with `Nothing happens.`"""

REFUSED = "Nothing happens."
_MAX_STEPS = 15
_BANNER = re.compile(r"^\s*-= .*? =-\s*")
_TASK_LINE = re.compile(r"\s*Your task is to: (?P<goal>.*?)\.?\s*$", re.DOTALL)
_OLD_PUT = re.compile(r"^put (?P<thing>.+?) (?:in/on|in|on|into|onto) (?P<place>.+)$")


def normalise_action(text: str) -> str:
    """One line, single spaces, lower case; `put X in/on Y` of ALFWorld 0.3 becomes `move X to Y` of 0.4."""
    action = " ".join(text.lower().split()).removesuffix(".")
    old = _OLD_PUT.match(action)
    return f"move {old['thing']} to {old['place']}" if old else action


class AlfworldAdapter:
    """The real ALFWorld. A task is `{"game": GameSpec.to_json()}` or `{"game_file": path below ALFWORLD_DATA}`.

    Without either, a game is generated from the seed, with `task_type`, `rooms` and `split` if given.
    `"expert": True` adds the hand-coded expert's next action to each state; it costs a few milliseconds a step.
    Reward is the engine's: 1.0 at the step that reaches the goal, else 0.0.
    """

    def __init__(self) -> None:
        self._engine: Any = None
        self._wrapped: Any = None
        self._loaded: object = None
        self._with_expert = False
        self._expert: Any = None
        self._instruction = ""
        self._running = False
        self._last_action = ""

    def describe(self) -> AdapterInfo:
        """Name, domain and action format of ALFWorld."""
        return AdapterInfo(
            name="alfworld", description=DESCRIPTION, max_steps=_MAX_STEPS, lists_admissible_actions=True
        )

    @property
    def instruction(self) -> str:
        """The goal of the loaded game in ALFWorld's wording; empty before the first reset."""
        return self._instruction

    def reset(self, task_spec: Mapping[str, Any], seed: int) -> AdapterState:
        """Start a game. The state is the room's description; the instruction is not part of it."""
        key, data, parameters, instruction = _read_task(task_spec, seed)
        with_expert = bool(task_spec.get("expert", False))
        self._running = False
        self._build(with_expert)
        if key != self._loaded:
            self._loaded = None
            try:
                self._wrapped.load(data)
            except Exception as error:  # the engine raises whatever its PDDL translator raises
                raise TaskSpecError(
                    f"ALFWorld's engine cannot load the game ({error!r}).",
                    remedy="Check that the specification or file comes from alfworld 0.4.2.",
                ) from error
            self._loaded = key
        self._instruction = instruction or self._engine.goal_text
        state = self._wrapped.reset()
        self._last_action = ""
        self._expert = _new_expert(parameters, state["feedback"], seed) if with_expert else None
        self._running = not state["won"]
        return self._state(state, clean_observation(state["feedback"]), valid=True)

    def step(self, action: str) -> AdapterState:
        """Perform one action; one that the engine refuses leaves everything as it was."""
        if not self._running:
            raise EpisodeStateError(
                "No ALFWorld episode is running.", remedy="Call reset first; after done, a new reset is needed."
            )
        command = normalise_action(action)
        try:
            state, _, done = self._wrapped.step(command)
        except Exception as error:  # whatever it is, it is not an outcome of the episode
            self._running, self._loaded = False, None
            raise AdapterError(
                f"ALFWorld's engine failed at the action {command!r} ({error!r}).", remedy="Reset and play again."
            ) from error
        self._last_action = command
        self._running = not done
        # An accepted action is the engine's own record, whatever text it answers with.
        return self._state(state, clean_observation(state["feedback"]), valid=state["_last_action"] is not None)

    def close(self) -> None:
        """Unload the engine."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._wrapped = self._loaded = self._expert = None
        self._running = False

    def _build(self, with_expert: bool) -> None:
        if self._wrapped is not None and with_expert == self._with_expert:
            return
        self.close()
        wrappers = import_alfworld("alfworld.agents.environment.alfred_tw_env")
        infos = import_alfworld("textworld").EnvInfos(won=True, admissible_commands=True, facts=with_expert)
        self._engine = import_alfworld("dreamgym.bridge.adapters.alfworld_cached_env").CachedPddlEnv(infos)
        self._wrapped = wrappers.AlfredInfos(wrappers.AlfredDemangler(self._engine))
        self._with_expert = with_expert

    def _state(self, state: Any, text: str, *, valid: bool) -> AdapterState:
        won = bool(state["won"])
        return AdapterState(
            state=text,
            reward=float(won),
            done=won,
            success=won,
            admissible_actions=tuple(state["admissible_commands"]),
            valid_action=valid,
            expert_action=_ask_expert(self._expert, state, self._last_action) if self._expert and not won else None,
        )


def clean_observation(feedback: str) -> str:
    """The engine's text without its banner and without the task line."""
    return _TASK_LINE.sub("", _BANNER.sub("", feedback)).strip()


def _read_task(task_spec: Mapping[str, Any], seed: int) -> tuple[object, dict[str, Any], dict[str, str], str]:
    """A key for what is loaded, the engine's game data, the expert's parameters and the instruction."""
    if "game_file" in task_spec:
        path = _game_file(str(task_spec["game_file"]))
        data, parameters = _read_game_file(path)
        return path, data, parameters, ""
    if "game" in task_spec:
        spec = GameSpec.from_json(task_spec["game"])
    elif task_spec and "task_type" not in task_spec and "rooms" not in task_spec:
        # A task that says what it is, but not which game it is, must not be answered with some other game.
        raise TaskSpecError(
            f"This task has no game of ALFWorld; its metadata holds only {sorted(task_spec)}.",
            remedy="Give metadata.game or metadata.game_file; a generated task can be played in the dream only.",
        )
    else:
        wanted = {name: task_spec[name] for name in ("task_type", "rooms", "split") if name in task_spec}
        spec = generate_game(seed, **wanted)
    parameters = {
        "task_type": spec.task_type,
        "object_target": spec.object,
        "parent_target": spec.receptacle,
        "toggle_target": spec.lamp,
    }
    return spec, game_data(spec), parameters, spec.instruction


def _game_file(name: str) -> Path:
    root = os.environ.get(DATA_VARIABLE)
    if not root:
        raise TaskSpecError(
            f"The game file {name} cannot be found because {DATA_VARIABLE} is not set.",
            remedy=f"Set {DATA_VARIABLE} to the folder that holds ALFWorld's games.",
        )
    path = (Path(root) / name).resolve()
    if not path.is_relative_to(Path(root).resolve()):
        raise TaskSpecError(f"The game file {name} lies outside {root}.", remedy="Name a path below ALFWORLD_DATA.")
    if path.is_dir():
        path = path / "game.tw-pddl"
    if not path.is_file():
        raise TaskSpecError(
            f"There is no game file {name} below {root}.",
            remedy="Download ALFWorld's games there with `alfworld-download`, or pass a generated game.",
        )
    return path


def _read_game_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        data = json.loads(path.read_text())
        beside = path.with_name("traj_data.json")
        trajectory = json.loads(beside.read_text()) if beside.is_file() else {}
    except (OSError, ValueError) as error:
        raise TaskSpecError(f"The game file {path.name} cannot be read ({error}).", remedy="Fetch it again.") from error
    missing = {"pddl_domain", "grammar", "pddl_problem"} - data.keys()
    if missing:
        raise TaskSpecError(
            f"The game file {path.name} lacks {', '.join(sorted(missing))}.", remedy="Build it with alfworld-generate."
        )
    parameters = {name: str(value) for name, value in trajectory.get("pddl_params", {}).items()}
    return data, {**parameters, "task_type": str(trajectory.get("task_type", ""))} if trajectory else {}


def _new_expert(parameters: dict[str, str], feedback: str, seed: int) -> Any:
    if not parameters:
        raise TaskSpecError(
            "The hand-coded expert needs the task's parameters, and there is no traj_data.json beside the game file.",
            remedy="Put it there, or ask without the expert.",
        )
    module = import_alfworld("alfworld.agents.expert.handcoded_expert_tw")
    random.seed(seed)  # the expert draws from the module-level generator when it is stuck
    expert = module.HandCodedTWAgent(max_steps=200)
    expert.task_params = {name: value if name == "task_type" else value.lower() for name, value in parameters.items()}
    policy = expert.get_task_policy(expert.task_params)
    expert.policy = policy(expert.task_params, max_steps=expert.max_steps)
    expert.observe(feedback)
    return expert


def _ask_expert(expert: Any, state: Any, last_action: str) -> str:
    """The expert's next action, as ALFWorld's own wrapper asks for it: `look` where it has none that is admissible."""
    if not last_action:
        return "look"
    try:
        wanted = str(expert.act(state, 0, state["won"], last_action))
    except NameError as error:  # its two own exceptions, timeout and failure, derive from NameError
        raise AdapterError(
            f"The hand-coded expert gave up ({error!r}).", remedy="Use the searcher, or play on without the expert."
        ) from error
    return wanted if wanted in state["admissible_commands"] else "look"
