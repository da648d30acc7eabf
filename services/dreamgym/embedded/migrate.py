"""Bring the database schema up to date with alembic, in a process of its own.

    DREAMGYM_DATABASE_URL=... python -m dreamgym.embedded.migrate ALEMBIC_INI

Its own process, because alembic's environment script configures logging and imports every service's models.
"""

import os
import subprocess
import sys
from pathlib import Path

from alembic import command
from alembic.config import Config

import dreamgym
from dreamgym.embedded.environment import base_environment
from dreamgym.embedded.errors import MigrationError

_DEADLINE_S = 300


def find_alembic_ini() -> Path:
    """The configuration of the migrations: at the root of the source tree, or inside the installed package."""
    package = Path(dreamgym.__file__).parent
    candidates = [package.parents[1] / "alembic.ini", package / "alembic.ini", package / "migrations" / "alembic.ini"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise MigrationError(f"There is no alembic.ini (looked at {looked}).", "Give its path, or reinstall dreamgym.")


def migrate(url: str, alembic_ini: Path, log_path: Path) -> None:
    """Run `alembic upgrade heads` against `url`; MigrationError carries the end of its output."""
    if not alembic_ini.is_file():
        raise MigrationError(f"There is no {alembic_ini}.", "Give the path of the migrations' alembic.ini.")
    try:
        result = subprocess.run(
            [sys.executable, "-m", "dreamgym.embedded.migrate", str(alembic_ini.absolute())],
            env={**base_environment(), "DREAMGYM_DATABASE_URL": url},
            cwd=alembic_ini.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MigrationError(f"The migrations took over {_DEADLINE_S} s.", f"Read {log_path}.") from None
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_text(result.stdout, encoding="utf-8")
    if result.returncode != 0:
        tail = "\n".join(result.stdout.strip().splitlines()[-15:])
        remedy = "A revision that cannot be located was made by newer code: run that, or a new --state."
        raise MigrationError(f"The migrations of {alembic_ini} failed.\n--- alembic said ---\n{tail}\n---\n", remedy)


def main(alembic_ini: Path, url: str) -> None:
    """Upgrade to all heads: each schema is a branch of its own."""
    configuration = Config(str(alembic_ini))
    configuration.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(configuration, "heads")


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ["DREAMGYM_DATABASE_URL"])
