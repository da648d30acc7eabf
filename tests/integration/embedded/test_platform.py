"""The platform, with stub services in the places of the real ones."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from celery import Celery

from dreamgym.embedded.environment import base_environment
from dreamgym.embedded.errors import (
    CrashLoopError,
    MigrationError,
    PortRefusedError,
    StateLockedError,
)
from dreamgym.embedded.platform import running_platform
from dreamgym.embedded.ports import LOOPBACK, choose_port
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.service import ServiceState
from dreamgym.embedded.services import GRPC_SERVICES
from support.embedded import STUBS, gone, query, stub_command, until

pytestmark = pytest.mark.integration


class TestPlatform:
    def test_everything_starts_works_and_survives_the_death_of_each_part(self, make_platform, state):
        with make_platform() as platform:
            assert running_platform(state)["gateway_url"] == platform.addresses["gateway"]
            assert query(platform.wiring.database_url, "SELECT count(*) FROM alembic_version") == 2
            pids = {name: platform.pid(name) for name in platform.supervisor.status()}
            assert list(pids) == [
                *("postgres", "valkey", "replay", "experience", "experience-2", "curriculum", "bridge"),
                *("gateway", "trainer"),
            ]
            for name, pid in pids.items():
                platform.kill(name)
                assert platform.supervisor.wait_healthy(name, other_than_pid=pid) != pid
            assert query(platform.wiring.database_url, "SELECT count(*) FROM alembic_version") == 2
            proof = state / "objects" / "proof"
            with Celery(broker=platform.wiring.broker_url, set_as_current=False) as application:
                application.send_task("stub.touch", [str(proof)], queue="train", ignore_result=True)
            until(proof.exists)
            with pytest.raises(StateLockedError):
                make_platform().start()
            assert running_platform(state) is not None
            pids = {name: platform.pid(name) for name in pids}
        assert running_platform(state) is None
        assert not (state / "platform.json").exists()
        assert all(gone(pid) for pid in pids.values())

    def test_the_second_start_keeps_data_and_addresses(self, make_platform):
        with make_platform() as platform:
            addresses = platform.addresses
            query(platform.wiring.database_url, "INSERT INTO replay_rows VALUES ('[1,2,3]')")
        with make_platform() as platform:
            assert platform.addresses == addresses
            assert query(platform.wiring.database_url, "SELECT count(*) FROM replay_rows") == 1

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
from support.embedded import stub_command
from dreamgym.embedded.platform import run_platform
run_platform(Path(sys.argv[2]), None, lambda platform: print("ready", flush=True),
             quick=True, alembic_ini=Path(sys.argv[3]), command=stub_command)
print("stopped", flush=True)
"""


class TestForeground:
    @pytest.fixture
    def foreground(self, state: Path, alembic_ini: Path) -> Iterator["subprocess.Popen[str]"]:
        process = subprocess.Popen(
            [sys.executable, "-c", FOREGROUND, str(STUBS.parents[1]), str(state), str(alembic_ini)],
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
        assert all(gone(pid) for pid in pids)
        assert not (state / "platform.json").exists()

    def test_a_stop_signal_during_the_start_is_obeyed_too(self, state, alembic_ini):
        process = subprocess.Popen(
            [sys.executable, "-c", FOREGROUND, str(STUBS.parents[1]), str(state), str(alembic_ini)],
            env=base_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        until((state / "run" / "postgres.json").exists)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert output == "stopped\n"
        assert process.returncode == 0
        assert not EmbeddedPostgres(state).running()

    def test_kill_9_leaves_nothing_and_the_next_start_works(self, foreground, state, make_platform):
        pids = self._pids(state)
        foreground.kill()
        with make_platform() as platform:
            assert all(gone(pid) for pid in pids)
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
