"""The replay service and its database: deaths, restarts, migrations."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from dreamgym.core.errors import (
    UnavailableError,
)
from dreamgym.embedded.migrate import find_alembic_ini, migrate
from dreamgym.embedded.postgres import EmbeddedPostgres
from support.replay import Serve, append, episode, listed, refused, search

if TYPE_CHECKING:  # the asynchronous stub exists only for the type checker
    pass


pytestmark = pytest.mark.integration


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterable[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "state")
    server.start()
    yield server
    server.wipe()


async def test_the_service_survives_the_death_of_postgres(
    serve: Serve, environment_id: str, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    own_postgres.ensure_database("dreamgym")
    url = own_postgres.url("dreamgym")
    migrate(url, find_alembic_ini(), tmp_path / "alembic.log")
    replay, _ = await serve(database_url=url)
    await append(replay, [episode(environment_id, "before")])

    pid = own_postgres.pid()
    assert pid is not None
    everyone = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs(everyone, timeout=20)
    error = await refused(search(replay, environment_id, "a room", "look"))
    assert isinstance(error, UnavailableError)
    assert "database does not answer" in error.message
    assert "Postgres" in error.remedy
    assert isinstance(await refused(append(replay, [episode(environment_id, "lost")])), UnavailableError)

    own_postgres.start()
    assert own_postgres.url("dreamgym") == url
    assert len(await search(replay, environment_id, "a room", "look")) == 2
    assert (await append(replay, [episode(environment_id, "after")])).episodes_stored == 1
    assert await listed(replay, environment_id) == ["before", "after"]


async def test_a_restart_of_postgres_between_two_calls_is_not_noticed(
    serve: Serve, environment_id: str, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    own_postgres.ensure_database("dreamgym")
    url = own_postgres.url("dreamgym")
    migrate(url, find_alembic_ini(), tmp_path / "alembic.log")
    replay, _ = await serve(database_url=url)
    await append(replay, [episode(environment_id, "before")])
    own_postgres.stop()
    own_postgres.start()
    assert len(await search(replay, environment_id, "a room", "look")) == 2


def test_the_migration_goes_down_and_up_and_agrees_with_the_models(
    embedded_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    embedded_postgres.ensure_database("migrations")
    url = embedded_postgres.url("migrations")
    migrate(url, find_alembic_ini(), tmp_path / "alembic.log")
    configuration = Config(str(find_alembic_ini()), cmd_opts=Namespace(x=["schema=replay"]))
    configuration.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.check(configuration)
    command.downgrade(configuration, "replay@base")
    engine = create_engine(url)
    with engine.connect() as connection:
        left = connection.scalar(text("SELECT count(*) FROM pg_class WHERE relnamespace = 'replay'::regnamespace"))
    engine.dispose()
    assert left == 0
    command.upgrade(configuration, "heads")
    command.check(configuration)
