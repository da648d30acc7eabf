"""A state folder, and the servers and the platform in it."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dreamgym.embedded.platform import EmbeddedPlatform
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.valkey import EmbeddedValkey
from support.embedded import stub_command


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
