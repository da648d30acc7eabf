"""Who the databases run as, and where their data may lie.

PostgreSQL refuses to run as root. When the platform is started by root, both databases run as an unprivileged system
user that owns nothing but its own data folder. Folders of other people are never changed to let that user through:
when it cannot reach a place, another place is chosen and remembered.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dreamgym.embedded.errors import DataMissingError, EmbeddedError
from dreamgym.embedded.records import read_record, write_record

_CANDIDATES = ("postgres", "nobody")
_ELSEWHERE = (Path("/var/tmp"), Path("/tmp"))  # noqa: S108 - only ever through mkdtemp, and its owner is checked


@dataclass(frozen=True)
class ServiceUser:
    """An unprivileged account."""

    name: str
    uid: int
    gid: int

    @property
    def owner(self) -> tuple[int, int]:
        return self.uid, self.gid


def service_user() -> ServiceUser | None:
    """The account for the databases when we are root; None when we are not and they run as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        if account.pw_uid != 0:
            return ServiceUser(name, account.pw_uid, account.pw_gid)
    raise EmbeddedError(
        f"Started by root, and there is no account to run the databases as (tried {', '.join(_CANDIDATES)}).",
        "Create one of them, or start as an ordinary user.",
    )


def run_as(
    user: ServiceUser | None, command: Sequence[str | Path], folder: Path = Path("/")
) -> subprocess.CompletedProcess[str]:
    """Run a short command as `user` and return its result; output is text, stderr is part of stdout."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )


def can_run(user: ServiceUser | None, program: Path) -> bool:
    """Whether `user` can reach and execute `program`: tried, so that every kind of permission counts."""
    try:
        return run_as(user, [program, "--version"]).returncode == 0
    except OSError:
        return False


def can_enter(user: ServiceUser | None, folder: Path) -> bool:
    """Whether `user` can pass through `folder`."""
    try:
        return run_as(user, ["test", "-x", folder]).returncode == 0
    except OSError:
        return False


def make_state_dir(state_dir: Path) -> Path:
    """Create the state folder if need be; others may pass through a new one made by root, but not list it."""
    state_dir = state_dir.expanduser().absolute()
    if not state_dir.exists():
        state_dir.mkdir(parents=True, exist_ok=True)
        state_dir.chmod(0o711 if os.geteuid() == 0 else 0o700)
    return state_dir


def data_home(state_dir: Path, server: str, user: ServiceUser | None) -> Path:
    """The folder of `server`'s files (mode 0700, owned by its user), made at the first call and remembered.

    It is STATE/SERVER, or a folder under /var/tmp when the user cannot reach the state folder.
    """
    record_path = state_dir / f"{server}.json"
    record = read_record(record_path)
    if remembered := record.get("home"):
        home = Path(remembered)
        _check_home(server, home, record_path, user)
        return home
    home = state_dir / server
    if user is not None and not can_enter(user, state_dir):
        parent = next((folder for folder in _ELSEWHERE if can_enter(user, folder)), None)
        if parent is None:
            raise EmbeddedError(
                f"The account {user.name} can reach neither {state_dir} nor a temporary folder.",
                "Choose a --state folder that it can reach, or start as an ordinary user.",
            )
        home = Path(tempfile.mkdtemp(prefix=f"dreamgym-{server}-", dir=parent))
    else:
        home.mkdir(mode=0o700, exist_ok=True)
    home.chmod(0o700)
    if user is not None:
        os.chown(home, *user.owner)
    write_record(record_path, {**record, "home": str(home)})
    return home


def forget_home(state_dir: Path, server: str) -> None:
    """Delete `server`'s files and what is remembered of them."""
    record_path = state_dir / f"{server}.json"
    if remembered := read_record(record_path).get("home"):
        shutil.rmtree(remembered, ignore_errors=True)
    record_path.unlink(missing_ok=True)


def _check_home(server: str, home: Path, record_path: Path, user: ServiceUser | None) -> None:
    try:
        status = home.lstat()
    except OSError:
        raise DataMissingError(server, home, record_path, "is gone") from None
    expected = os.geteuid() if user is None else user.uid
    if home.is_symlink() or not home.is_dir() or status.st_uid != expected:
        raise DataMissingError(server, home, record_path, f"is not a folder owned by uid {expected}")
