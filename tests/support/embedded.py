"""What the tests of the embedded servers and of the platform share."""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import sqlalchemy

from dreamgym.embedded.platform import EmbeddedPlatform
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.services import TRAINER_NODE, service_of
from dreamgym.embedded.valkey import EmbeddedValkey

STUBS = Path(__file__).parents[1] / "unit" / "embedded"


@contextmanager
def state_folder() -> Iterator[Path]:
    """A state folder that other users can pass through: PostgreSQL runs as one when we are root (pytest's own are closed)."""
    state = Path(tempfile.mkdtemp(prefix="dreamgym-tests-"))
    state.chmod(0o711)
    try:
        yield state
    finally:
        shutil.rmtree(state, ignore_errors=True)


@contextmanager
def running_platform() -> Iterator[EmbeddedPlatform]:
    """The whole platform as `dreamgym up` starts it, in a state folder of its own."""
    with state_folder() as state:
        embedded = EmbeddedPlatform(state, quick=True)
        try:
            with embedded:
                yield embedded
        finally:
            embedded.wipe()


def until(condition: Callable[[], object], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {timeout_s} s"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def query(url: str, statement: str) -> object:
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(sqlalchemy.text(statement))
            return result.scalar() if result.returns_rows else None
    finally:
        engine.dispose()


def kill_server(server: EmbeddedPostgres | EmbeddedValkey) -> int:
    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: server.pid() is None)
    return pid


def stub_command(name: str) -> Sequence[str]:
    """The stub that stands for a service; addresses come from the environment, as for the real ones."""
    if name == "trainer":
        return [sys.executable, str(STUBS / "stub_worker.py"), f"--hostname={TRAINER_NODE}"]
    kind = "http" if name == "gateway" else "grpc"
    address = (
        "$DREAMGYM_GATEWAY_HOST:$DREAMGYM_GATEWAY_PORT"
        if name == "gateway"
        else f"$DREAMGYM_{service_of(name).upper()}_ADDRESS"
    )
    return ["sh", "-c", f'exec "$0" "$@" {kind} {address}', sys.executable, str(STUBS / "stub_service.py")]
