"""The platform on this machine, as the command line starts it: `dreamgym up` and the demo.

The embedded platform is imported only here and only when it is needed: a client machine does not have it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.cli.connection import ADMIN_KEY, read_admin_key
from dreamgym.core.errors import DreamGymError

if TYPE_CHECKING:
    from dreamgym.embedded.platform import EmbeddedPlatform

_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*@")


class LocalPlatformError(DreamGymError):
    """The platform on this machine cannot be started, or cannot be kept running."""

    code = "local_platform"


def run_until_stopped(
    state_dir: Path, *, port: int | None, quick: bool, on_ready: Callable[[str], None], say: Callable[[str], None]
) -> None:
    """Run the platform until a signal stops it. `on_ready` is given the gateway's address."""
    with _installed():
        from dreamgym.embedded.platform import run_platform

        run_platform(
            state_dir,
            port,
            lambda platform: on_ready(platform.wiring.gateway_url),
            quick=quick,
            on_change=lambda status: say(_line(status)),
        )


@contextlib.contextmanager
def running(state_dir: Path, *, quick: bool, say: Callable[[str], None]) -> Iterator[EmbeddedPlatform]:
    """The platform for the length of a block; it is stopped in order, whatever ends the block."""
    with _installed():
        from dreamgym.embedded.platform import EmbeddedPlatform

        platform = EmbeddedPlatform(state_dir, quick=quick, on_change=lambda status: say(_line(status)))
        with platform:
            yield platform


def require_admin_key(state_dir: Path) -> str:
    """The key that the gateway made at its first start."""
    key = read_admin_key(state_dir)
    if not key:
        raise LocalPlatformError(
            f"There is no admin key in {state_dir / ADMIN_KEY}.",
            remedy="It is written once, at the first start. Use another --state, or give a key with --key.",
        )
    return key


def describe_machine() -> int:
    """Print what this machine has and lacks; returns the exit code."""
    with _installed():
        from dreamgym.embedded.doctor import main

        return main()


def effective_settings() -> dict[str, Any]:
    """The settings of services that would be started here, secrets hidden, passwords in addresses too."""
    from dreamgym.wire.settings import ServiceSettings

    settings: dict[str, Any] = ServiceSettings().model_dump(mode="json")
    return {
        name: _PASSWORD.sub(r"\1***@", value) if isinstance(value, str) else value for name, value in settings.items()
    }


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    """Say what to install where a part of the platform is not there; its other errors speak for themselves."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise LocalPlatformError(
            f"This installation cannot run the platform: {error}.",
            remedy="Install it with `pip install 'dreamgym[embedded,trainer,encoder]'`.",
        ) from error


def _line(status: Any) -> str:
    detail = status.detail.splitlines()[0] if status.detail else ""
    return f"{status.name} {status.state} {detail}".rstrip()
