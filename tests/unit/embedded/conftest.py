"""State folders and specs of the stub service."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dreamgym.embedded.ports import LOOPBACK, choose_port
from dreamgym.embedded.service_spec import ServiceSpec

STUB = Path(__file__).with_name("stub_service.py")


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dreamgym-test-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def stub() -> Callable[..., ServiceSpec]:
    """Makes the spec of a gRPC stub on a free port."""

    def make(name: str, fault: str = "", kind: str = "grpc", **settings: Any) -> ServiceSpec:
        address = f"{LOOPBACK}:{choose_port()}"
        target = address if kind == "grpc" else f"http://{address}/healthz"
        settings.setdefault("health", (kind, target))
        return ServiceSpec(name=name, command=[sys.executable, str(STUB), kind, address, fault], **settings)

    return make


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Waits for a condition, up to 20 s."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true within 20 s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Whether a pid has ended (a zombie that nobody reaps has)."""

    def ended(pid: int) -> bool:
        assert pid != os.getpid()
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return ended
