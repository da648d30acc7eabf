"""Runs the migrations of every schema, in one transaction and under one lock.

Each schema is a branch with its own folder in `migrations/versions`; a folder may be missing or empty. The schemas
themselves are made here, so that a revision only ever touches the inside of its own. The database comes from the
caller's `sqlalchemy.url`, else from DREAMGYM_DATABASE_URL.
"""

from __future__ import annotations

import importlib
from logging.config import fileConfig
from typing import Any

from alembic import context
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema

from dreamgym.wire.settings import ServiceSettings

MODELS = {
    "replay": "dreamgym.replay.tables",
    "platform": "dreamgym.gateway.tables",
    "curriculum": "dreamgym.curriculum.tables",
    "bridge": "dreamgym.bridge.tables",
}
"""Schema to the module whose `Base` describes its tables."""
LOCK = 7_421_093_365
"""Any number, as long as every version of this file has the same: two migrating processes take turns."""


def chosen_schema() -> str | None:
    """The schema of `-x schema=NAME`: the one whose models `check` and `--autogenerate` compare."""
    wanted = context.get_x_argument(as_dictionary=True).get("schema")
    if wanted is None or wanted in MODELS:
        return wanted
    raise SystemExit(f"There is no schema {wanted!r}: choose one of {', '.join(MODELS)}.")


def options(schema: str | None) -> dict[str, Any]:
    """Settings of the comparison. Upgrading and downgrading need no models, so that no service is imported for them."""

    def include_name(name: str | None, kind: str, parents: Any) -> bool:
        return kind != "schema" or name == schema

    def include_object(item: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        # A service that makes tables at run time (partitions) marks their names by a leading `p_`.
        table = item if kind == "table" else item.table
        return table.schema == schema and not table.name.startswith("p_")

    return {
        "target_metadata": importlib.import_module(MODELS[schema]).Base.metadata if schema else None,
        "include_schemas": True,
        "include_name": include_name,
        "include_object": include_object,
        "version_table_schema": "public",
    }


def create_schemas(connection: Connection) -> None:
    # Not IF NOT EXISTS: that asks for the right to create schemas even when there is nothing to create.
    present = set(inspect(connection).get_schema_names())
    for schema in MODELS:
        if schema not in present:
            connection.execute(CreateSchema(schema))


def migrate_online(url: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        create_schemas(connection)
        context.configure(connection=connection, **options(chosen_schema()))
        with context.begin_transaction():
            context.run_migrations()


def print_sql(url: str) -> None:
    context.configure(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"}, **options(chosen_schema()))
    with context.begin_transaction():
        for schema in MODELS:
            context.execute(CreateSchema(schema, if_not_exists=True))
        context.run_migrations()


if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)
database_url = context.config.get_main_option("sqlalchemy.url") or ServiceSettings().database_url
if context.is_offline_mode():
    print_sql(database_url)
else:
    migrate_online(database_url)
