"""One adapter in a process of its own: `python -m dreamgym.bridge.worker`, commands on stdin, answers on stdout.

Whatever an engine prints goes to stderr, so that it cannot spoil an answer. The process ends when its stdin ends,
also in the middle of a call, so that a killed bridge leaves no engine behind.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from dreamgym.bridge import frames
from dreamgym.bridge.adapters.protocol import EnvironmentAdapter
from dreamgym.bridge.adapters.registry import create_adapter
from dreamgym.core.errors import AdapterError, AdapterMissingError, ConflictError, DreamGymError, InvalidInputError


class Worker:
    """Answers the bridge's calls with the adapter that it was opened for."""

    def __init__(self) -> None:
        self._adapter: EnvironmentAdapter | None = None
        self._calls: dict[str, Callable[[frames.Message], frames.Message]] = {
            "open": self._open,
            "reset": self._reset,
            "step": self._step,
            "close": self._close,
        }

    def answer(self, message: frames.Message) -> frames.Message:
        """`{"ok": ...}`, or `{"error": {code, message, remedy, broken}}`; broken: the engine's state is unknown."""
        try:
            call = self._calls.get(str(message.get("call")))
            if call is None:
                raise InvalidInputError(f"An adapter process does not know the call {message.get('call')!r}.")
            return {"ok": call(message)}
        except DreamGymError as error:
            return _error(error, broken=isinstance(error, AdapterError))
        except Exception as error:
            wrapped = AdapterError(
                f"The environment failed in {message.get('call')}: {type(error).__name__}: {error}.",
                remedy="Its adapter process is replaced; play the episode again.",
            )
            return _error(wrapped, broken=True)

    def _open(self, message: frames.Message) -> frames.Message:
        self._close(message)
        name, target = str(message["adapter"]), str(message.get("factory") or "")
        self._adapter = _from_target(name, target) if target else create_adapter(name)
        return frames.info_to_json(self._adapter.describe())

    def _reset(self, message: frames.Message) -> frames.Message:
        return frames.state_to_json(self._opened().reset(message["task"], int(message["seed"])))

    def _step(self, message: frames.Message) -> frames.Message:
        return frames.state_to_json(self._opened().step(str(message["action"])))

    def _close(self, _: frames.Message) -> frames.Message:
        if self._adapter is not None:
            self._adapter.close()
            self._adapter = None
        return {}

    def _opened(self) -> EnvironmentAdapter:
        if self._adapter is None:
            raise ConflictError("This adapter process has no adapter open.", remedy="Send open first.")
        return self._adapter


def _from_target(name: str, target: str) -> EnvironmentAdapter:
    module, _, attribute = target.partition(":")
    try:
        factory: Callable[[], EnvironmentAdapter] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise AdapterMissingError(
            f"The adapter {name} cannot be loaded from {target!r}: {error}.",
            remedy="DREAMGYM_BRIDGE_ADAPTERS names it as module:factory; the module must be importable.",
        ) from error
    return factory()


def _error(error: DreamGymError, *, broken: bool) -> frames.Message:
    return {"error": {"code": error.code, "message": error.message, "remedy": error.remedy, "broken": broken}}


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """The process's stdin and stdout for us alone; everyone else reads nothing and writes to stderr."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(reader, "rb"), os.fdopen(writer, "wb")


def _read_all(reader: BinaryIO, inbox: queue.SimpleQueue[Any]) -> None:
    try:
        while (message := frames.read_frame(reader)) is not None:
            inbox.put(message)
    finally:
        _end()


def _end() -> None:
    """End at once, with what the engine has started; the bridge gives each worker a process group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)


def main() -> None:
    """Serve until stdin ends."""
    reader, writer = _private_streams()
    inbox: queue.SimpleQueue[frames.Message] = queue.SimpleQueue()
    threading.Thread(target=_read_all, args=(reader, inbox), daemon=True).start()
    worker = Worker()
    while True:
        message = inbox.get()
        answer = worker.answer(message)
        try:
            writer.write(frames.encode(answer))
            writer.flush()
        except BrokenPipeError:
            _end()


if __name__ == "__main__":
    main()
