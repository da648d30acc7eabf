"""A small HTTP server on loopback that misbehaves on request: what a real gateway does only when something is broken."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from fastapi import FastAPI

from dreamgym.client import DreamGym, Retries

FAST = Retries(attempts=4, first_delay_s=0.001, max_delay_s=0.01)


class _Server(uvicorn.Server):
    started_event: threading.Event

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_event.set()


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve an application on a free port; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    server.started_event = threading.Event()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert server.started_event.wait(10)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture
def client_of() -> Iterator[Callable[[FastAPI], DreamGym]]:
    """Makes a client of an application that is served for the length of the test."""
    with contextlib.ExitStack() as stack:

        def make(app: FastAPI) -> DreamGym:
            url = stack.enter_context(serving(app))
            return stack.enter_context(DreamGym(url, "secret", retries=FAST))

        yield make
