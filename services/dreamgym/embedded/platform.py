"""The whole platform on one machine, as a context manager and as a foreground program.

python -m dreamgym.embedded.platform --state DIR [--port N] [--quick]
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

import psutil

from dreamgym.embedded.errors import EmbeddedError, ServiceStartError, StopRequestedError
from dreamgym.embedded.migrate import find_alembic_ini, migrate
from dreamgym.embedded.ports import choose_port, require_port
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.records import read_record, write_record
from dreamgym.embedded.secret import read_or_create_secret
from dreamgym.embedded.service import ServiceStatus
from dreamgym.embedded.services import PORTS, Wiring, default_command, service_specs
from dreamgym.embedded.supervisor import Supervisor
from dreamgym.embedded.valkey import EmbeddedValkey

DATABASE = "dreamgym"
RECORD = "platform.json"


class EmbeddedPlatform:
    """PostgreSQL, Valkey, the migrations, five services and the trainer, all processes of this machine.

    While it is up, STATE/platform.json tells clients the addresses. Everything else that it makes is in the state
    folder too, so a platform is moved or deleted with it (see `wipe` for the one exception).
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        quick: bool = False,
        port: int | None = None,
        alembic_ini: Path | None = None,
        command: Callable[[str], Sequence[str]] = default_command,
        on_change: Callable[[ServiceStatus], None] | None = None,
    ) -> None:
        """`quick` tells the services to choose short settings; `port` is the gateway's (None: the last one, if free).

        `alembic_ini` defaults to the project's own; `command` gives each service's command line.
        """
        self.supervisor = Supervisor(state_dir, on_change)
        self.state_dir = self.supervisor.state_dir
        self.postgres = EmbeddedPostgres(self.state_dir, quick=quick)
        self.valkey = EmbeddedValkey(self.state_dir)
        self._quick = quick
        self._port = port
        self._alembic_ini = alembic_ini
        self._command = command
        self._wiring: Wiring | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return when all of it is healthy. On an error everything is stopped again.

        Raises an EmbeddedError: which service, what it said last, and the remedy.
        """
        alembic_ini = self._alembic_ini or find_alembic_ini()
        self.supervisor.open()
        try:
            self._start_databases()
            self.postgres.ensure_database(DATABASE)
            migrate(self.postgres.url(DATABASE), alembic_ini, self.state_dir / "logs" / "migrate.log")
            self._wiring = self._wire()
            self._wiring.object_store.mkdir(mode=0o700, exist_ok=True)
            self.supervisor.start(service_specs(self._wiring, self._command))
            self._publish()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything, dependents first. Nothing happens when it does not run."""
        if self.supervisor.is_open:  # else the record may be that of the platform that has the state folder
            (self.state_dir / RECORD).unlink(missing_ok=True)
            self.supervisor.close()

    def wipe(self) -> None:
        """Stop, and delete both databases' data, which lies elsewhere if their user cannot reach the state folder."""
        self.stop()
        self.postgres.wipe()
        self.valkey.wipe()

    def wait(self, timeout_s: float | None = None) -> None:
        """Block for `timeout_s`; raise CrashLoopError when a service is given up."""
        self.supervisor.wait(timeout_s)

    def restart(self, name: str) -> None:
        """Stop and start one service and return when it is healthy."""
        self.supervisor.restart(name)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill one service's process, as a fault would; it is restarted."""
        self.supervisor.kill(name, number)

    def pid(self, name: str) -> int | None:
        """The pid of a service, `postgres`, `valkey` and `trainer` included."""
        return self.supervisor.pid(name)

    @property
    def wiring(self) -> Wiring:
        """What the services were told."""
        if self._wiring is None:
            raise EmbeddedError("The platform has not been started.", "Call start() or use it as a context manager.")
        return self._wiring

    @property
    def addresses(self) -> dict[str, str]:
        """host:port by service, and the gateway as a URL."""
        return {**{name: self.wiring.address(name) for name in PORTS}, "gateway": self.wiring.gateway_url}

    def _start_databases(self) -> None:
        for server in (self.postgres, self.valkey):
            server.stop()  # one that was left alone: the state folder's lock is ours
            server.prepare()
        try:
            self.supervisor.start([self.postgres.spec(), self.valkey.spec()])
        except ServiceStartError as error:
            for server in (self.postgres, self.valkey):
                server.raise_if_full(error)
            raise

    def _wire(self) -> Wiring:
        record_path = self.state_dir / "ports.json"
        remembered = read_record(record_path)
        ports: dict[str, int] = {}
        for name in PORTS:
            last = remembered.get(name)
            ports[name] = choose_port(last if isinstance(last, int) else None, frozenset(ports.values()))
        if self._port is not None:
            ports["gateway"] = require_port(self._port)
        write_record(record_path, dict(ports))
        return Wiring(
            ports=ports,
            database_url=self.postgres.url(DATABASE),
            broker_url=self.valkey.url(),
            service_token=read_or_create_secret(self.state_dir / "secrets" / "service-token"),
            state_dir=self.state_dir,
            quick=self._quick,
        )

    def _publish(self) -> None:
        """Tell clients where everything is; secrets are named by their files only."""
        write_record(
            self.state_dir / RECORD,
            {
                "gateway_url": self.wiring.gateway_url,
                "addresses": self.addresses,
                "postgres": {"port": self.postgres.port, "database": DATABASE},
                "valkey": {"port": self.valkey.port},
                "object_store": str(self.wiring.object_store),
                "service_token_file": str(self.state_dir / "secrets" / "service-token"),
                "logs": str(self.state_dir / "logs"),
                "pid": os.getpid(),
                "create_time": psutil.Process().create_time(),
                "started_at": time.time(),
                "quick": self._quick,
            },
        )


def running_platform(state_dir: Path) -> dict[str, object] | None:
    """What STATE/platform.json says, if the platform that wrote it still lives; else None."""
    record = read_record(state_dir / RECORD)
    try:
        process = psutil.Process(int(record["pid"]))
        alive = abs(process.create_time() - float(record["create_time"])) < 0.05
    except (KeyError, TypeError, ValueError, psutil.Error):
        return None
    return record if alive else None


def run_platform(
    state_dir: Path,
    port: int | None = None,
    on_ready: Callable[[EmbeddedPlatform], None] | None = None,
    *,
    quick: bool = False,
    alembic_ini: Path | None = None,
    command: Callable[[str], Sequence[str]] = default_command,
    on_change: Callable[[ServiceStatus], None] | None = None,
) -> None:
    """Run the platform until SIGINT, SIGTERM or SIGHUP, then stop it in order. `on_ready` is called once it is up.

    Raises an EmbeddedError when it cannot start or when a service keeps dying; everything is stopped by then.
    """
    platform = EmbeddedPlatform(
        state_dir, quick=quick, port=port, alembic_ini=alembic_ini, command=command, on_change=on_change
    )
    with _signals_handled_by(lambda *_: platform.supervisor.request_stop()), contextlib.suppress(StopRequestedError):
        try:
            platform.start()
            if on_ready is not None:
                on_ready(platform)
            platform.wait()
        finally:
            platform.stop()


@contextlib.contextmanager
def _signals_handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give the stop signals to `handler`; only the main thread may, elsewhere they stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def main(arguments: Sequence[str] | None = None) -> int:
    """The foreground program; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dreamgym.embedded.platform", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="the folder of everything that the platform keeps")
    parser.add_argument(
        "--port", type=int, default=None, help="the gateway's port (default: the last one, or a free one)"
    )
    parser.add_argument("--quick", action="store_true", help="short settings, for trying it out")
    parser.add_argument("--alembic-ini", type=Path, default=None, help="the migrations (default: the project's own)")
    options = parser.parse_args(arguments)

    def report(status: ServiceStatus) -> None:
        print(
            f"{status.name}: {status.state} {status.detail.splitlines()[0] if status.detail else ''}".rstrip(),
            flush=True,
        )

    def announce(platform: EmbeddedPlatform) -> None:
        print(f"ready: {platform.wiring.gateway_url}", flush=True)

    try:
        run_platform(
            options.state,
            options.port,
            announce,
            quick=options.quick,
            alembic_ini=options.alembic_ini,
            on_change=report,
        )
    except EmbeddedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
