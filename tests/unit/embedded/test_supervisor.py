"""The supervisor with real child processes."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dreamgym.embedded.environment import base_environment
from dreamgym.embedded.errors import (
    CrashLoopError,
    ServiceSpecError,
    ServiceStartError,
    StateLockedError,
    UnknownServiceError,
)
from dreamgym.embedded.service import ServiceState, ServiceStatus
from dreamgym.embedded.service_spec import Liveness, RestartPolicy
from dreamgym.embedded.supervisor import Supervisor

FAST = RestartPolicy(initial_s=0.05, maximum_s=0.2, limit=3, window_s=60)


def test_services_start_in_the_order_of_their_needs_and_stop_in_the_reverse_order(state, stub):
    seen: list[tuple[str, ServiceState]] = []

    def note(status: ServiceStatus) -> None:
        seen.append((status.name, status.state))

    with Supervisor(state, note) as supervisor:
        supervisor.start([stub("store"), stub("page", kind="http", depends_on=["store"])])
        assert all(status.state is ServiceState.HEALTHY for status in supervisor.status().values())
    assert seen == [
        ("store", ServiceState.STARTING),
        ("store", ServiceState.HEALTHY),
        ("page", ServiceState.STARTING),
        ("page", ServiceState.HEALTHY),
        ("page", ServiceState.STOPPED),
        ("store", ServiceState.STOPPED),
    ]


def test_output_and_pid_are_on_record_while_a_service_runs(state, stub):
    with Supervisor(state) as supervisor:
        supervisor.start([stub("store")])
        record = json.loads((state / "run" / "store.json").read_text())
        assert record["pid"] == supervisor.pid("store")
        assert record["state"] == "healthy"
        assert f"pid {record['pid']}" in (state / "logs" / "store.log").read_text()
    assert "bye" in (state / "logs" / "store.log").read_text()
    assert json.loads((state / "run" / "store.json").read_text())["pid"] is None


def test_a_killed_service_is_restarted_as_another_process(state, stub):
    with Supervisor(state) as supervisor:
        supervisor.start([stub("store", restart=FAST)])
        first = supervisor.pid("store")
        supervisor.kill("store")
        second = supervisor.wait_healthy("store", other_than_pid=first)
        assert second != first
        assert supervisor.status()["store"].restarts == 1


def test_a_service_that_lives_but_does_not_answer_is_restarted(state, stub):
    with Supervisor(state) as supervisor:
        impatient = Liveness(interval_s=0.1, misses=2)
        supervisor.start([replace(stub("store", restart=FAST), liveness=impatient, stop_grace_s=0.2)])
        first = supervisor.pid("store")
        supervisor.kill("store", signal.SIGSTOP)
        supervisor.wait_healthy("store", other_than_pid=first)
        assert supervisor.status()["store"].restarts == 1


def test_a_service_that_fails_once_at_its_start_is_tried_again(state, stub):
    with Supervisor(state) as supervisor:
        supervisor.start([stub("store", f"once:{state}/tried", restart=FAST)])
        assert supervisor.status()["store"].restarts == 1


def test_a_service_that_keeps_dying_is_given_up_with_its_last_words(state, stub):
    with Supervisor(state) as supervisor:
        with pytest.raises(CrashLoopError, match=r"died 3 times.*exited with 3") as failure:
            supervisor.start([stub("store", "die", restart=FAST)])
        assert "boom: the reason of my death" in str(failure.value)
        assert str(state / "logs" / "store.log") in failure.value.remedy
        with pytest.raises(CrashLoopError):
            supervisor.wait(0)


def test_a_program_that_does_not_exist_is_named(state, stub):
    with Supervisor(state) as supervisor, pytest.raises(CrashLoopError, match="cannot run no-such-program"):
        supervisor.start([replace(stub("store", restart=FAST), command=["no-such-program"])])


def test_a_service_that_never_becomes_healthy_misses_its_deadline(state, stub, gone):
    with Supervisor(state) as supervisor:
        with pytest.raises(ServiceStartError, match=r"not healthy within 0\.5 s.*UNAVAILABLE"):
            supervisor.start([stub("store", "silent", start_deadline_s=0.5)])
        assert supervisor.pid("store") is None


def test_a_service_that_ignores_the_stop_signal_is_killed(state, stub, gone):
    with Supervisor(state) as supervisor:
        supervisor.start([stub("store", "stubborn", stop_grace_s=0.3)])
        pid = supervisor.pid("store")
    assert gone(pid)


def test_descendants_in_their_own_session_end_with_their_service(state, stub, gone, until):
    with Supervisor(state) as supervisor:
        supervisor.start([stub("store", f"family:{state}/child", restart=FAST)])
        first = int((state / "child").read_text())
        pid = supervisor.pid("store")
        supervisor.kill("store")
        supervisor.wait_healthy("store", other_than_pid=pid)
        assert gone(first)
        second = int((state / "child").read_text())
        assert not gone(second)
    until(lambda: gone(second))


def test_restart_gives_a_new_healthy_process(state, stub, gone):
    with Supervisor(state) as supervisor:
        supervisor.start([stub("store")])
        first = supervisor.pid("store")
        supervisor.restart("store")
        assert supervisor.pid("store") not in (None, first)
        assert gone(first)


def test_health_checks_may_be_functions_plain_or_async(state, stub):
    async def ready() -> bool:
        return True

    with Supervisor(state) as supervisor:
        supervisor.start([stub("one", health=lambda: True), stub("two", health=ready)])


def test_two_supervisors_on_one_state_folder_are_refused(state, stub):
    with Supervisor(state), pytest.raises(StateLockedError, match=f"in use by process {os.getpid()}"):
        Supervisor(state).open()
    with Supervisor(state):
        pass


def test_contradicting_specs_are_refused_before_anything_starts(state, stub):
    with Supervisor(state) as supervisor:
        with pytest.raises(ServiceSpecError, match="depends on store"):
            supervisor.start([stub("page", depends_on=["store"]), stub("store")])
        with pytest.raises(ServiceSpecError, match="given twice"):
            supervisor.start([stub("store"), stub("store")])
        with pytest.raises(ServiceSpecError, match="cannot name"):
            supervisor.start([stub("../store")])
        assert supervisor.status() == {}


def test_an_unknown_service_is_named_with_the_known_ones(state, stub):
    with Supervisor(state) as supervisor:
        supervisor.start([stub("store")])
        with pytest.raises(UnknownServiceError, match=r"no service 'stor'.*Known: store"):
            supervisor.restart("stor")


def test_services_do_not_see_the_secrets_of_the_callers_shell(state, stub, monkeypatch):
    monkeypatch.setenv("SOME_CLOUD_SECRET", "do-not-leak")
    with Supervisor(state) as supervisor:
        supervisor.start([stub("store", environment={"DREAMGYM_SETTING": "1"})])
        environment = psutil.Process(supervisor.pid("store")).environ()
    assert "SOME_CLOUD_SECRET" not in environment
    assert environment["DREAMGYM_SETTING"] == "1"


def test_children_outlive_the_thread_that_asked_for_them(state, stub):
    with Supervisor(state) as supervisor:
        caller = threading.Thread(target=supervisor.start, args=([stub("store")],))
        caller.start()
        caller.join()
        supervisor.wait(0.3)
        assert supervisor.status()["store"].restarts == 0
        assert supervisor.status()["store"].state is ServiceState.HEALTHY


SUPERVISE = """
import sys, time
from pathlib import Path
from dreamgym.embedded.service_spec import ServiceSpec
from dreamgym.embedded.supervisor import Supervisor
stub, state = sys.argv[1], Path(sys.argv[2])
with Supervisor(state) as supervisor:
    command = [sys.executable, stub, "idle", "-", f"family:{state}/child"]
    supervisor.start([
        ServiceSpec(
            "stubborn", [sys.executable, stub, "idle", "-", f"stubborn:{state}/deaf"], health=(state / "deaf").exists
        ),
        ServiceSpec("parent", command, health=(state / "child").exists),
    ])
    print("up", flush=True)
    time.sleep(600)
"""


def _supervise_elsewhere(state: Path) -> "subprocess.Popen[str]":
    stub = Path(__file__).with_name("stub_service.py")
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(stub), str(state)],
        env=base_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def _pids(state: Path) -> list[int]:
    pids = [json.loads((state / "run" / f"{name}.json").read_text())["pid"] for name in ("stubborn", "parent")]
    return [*pids, int((state / "child").read_text())]


def test_nothing_is_left_when_the_supervisor_itself_is_killed(state, gone, until):
    process = _supervise_elsewhere(state)
    pids = _pids(state)
    assert not any(gone(pid) for pid in pids)
    process.kill()
    process.communicate()
    # The stubborn ones ignore the kernel's SIGTERM; the guard takes them, and holds the lock until it has.
    with Supervisor(state):
        assert all(gone(pid) for pid in pids)


def test_what_a_killed_supervisor_and_a_killed_guard_left_ends_at_the_next_start(state, gone):
    process = _supervise_elsewhere(state)
    pids = _pids(state)
    # All children are looked at before the first is harmed: afterwards the others may be dying too.
    children = psutil.Process(process.pid).children()
    (guard,) = [child for child in children if "dreamgym.embedded.guard" in child.cmdline()]
    guard.send_signal(signal.SIGSTOP)
    process.kill()
    guard.kill()
    process.communicate()
    assert not gone(pids[0])
    with Supervisor(state):
        assert all(gone(pid) for pid in pids)
