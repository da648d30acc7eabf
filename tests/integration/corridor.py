"""A tiny environment to test the bridge with: walk a corridor of some length to its end. It can be told to misbehave."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from dreamgym.bridge.adapters.protocol import AdapterInfo, AdapterState, EpisodeStateError, TaskSpecError


class CorridorAdapter:
    """A task is `{"length": n}`. Actions: `forward`, `back`, and the misbehaviours `hang`, `crash`, `raise`, `print`."""

    def __init__(self) -> None:
        self._length = 0
        self._place = 0
        self._running = False

    def describe(self) -> AdapterInfo:
        return AdapterInfo("corridor", "A corridor. Actions: forward, back.", 8, lists_admissible_actions=True)

    def reset(self, task_spec: Mapping[str, Any], seed: int) -> AdapterState:
        if "length" not in task_spec:
            raise TaskSpecError("A corridor task needs a length.", remedy="Give metadata.length.")
        self._length, self._place, self._running = int(task_spec["length"]), 0, True
        return self._state()

    def step(self, action: str) -> AdapterState:
        if not self._running:
            raise EpisodeStateError("No corridor is open.")
        if action == "hang":
            time.sleep(3600)
        if action == "crash":
            os._exit(3)
        if action == "raise":
            raise RuntimeError("the ceiling fell")
        if action == "print":
            print("an engine that talks to stdout")
        moves = {"forward": 1, "back": -1, "print": 0, "pid": 0}
        self._place = max(0, self._place + moves.get(action, 0))
        self._running = self._place < self._length
        return self._state(valid=action in moves, note=f" Process {os.getpid()}." if action == "pid" else "")

    def close(self) -> None:
        self._running = False

    def _state(self, *, valid: bool = True, note: str = "") -> AdapterState:
        won = self._place >= self._length
        return AdapterState(
            state=f"You are at {self._place} of {self._length}.{note}",
            reward=float(won),
            done=won,
            success=won,
            admissible_actions=("back", "forward"),
            valid_action=valid,
        )
