"""Environments of a tenant."""

from __future__ import annotations

from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from dreamgym.core.errors import ConflictError, NotFoundError
from dreamgym.gateway.database import Database
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.tables import Environment


async def create_environment(
    database: Database, tenant_id: str, name: str, fields: dict[str, Any]
) -> tuple[Environment, bool]:
    """Create an environment; False if the very same one is there. Raises ConflictError if another has the name."""
    async with database.transaction() as session:
        values = {"id": new_id("env"), "tenant_id": tenant_id, "name": name, **fields}
        statement = insert(Environment).values(values).on_conflict_do_nothing(index_elements=["tenant_id", "name"])
        created = await session.scalar(statement.returning(Environment))
        if created is not None:
            return created, True
        known = await find_environment(session, tenant_id, name)
        different = [field for field, value in fields.items() if getattr(known, field) != value]
        if different:
            raise ConflictError(
                f"There is an environment {name!r} ({known.id}) that differs in {', '.join(different)}.",
                remedy="Use another name, or the environment that is there.",
            )
        return known, False


async def change_environment(
    database: Database, tenant_id: str, name_or_id: str, changes: dict[str, Any]
) -> Environment:
    """Set some of an environment's fields. Jobs read them when a stage begins. Raises NotFoundError."""
    async with database.transaction() as session:
        row = await find_environment(session, tenant_id, name_or_id)
        for field, value in changes.items():
            setattr(row, field, value)
        return row


async def find_environment(session: AsyncSession, tenant_id: str, name_or_id: str) -> Environment:
    """An environment by id or name. Raises NotFoundError."""
    query = select(Environment).where(
        Environment.tenant_id == tenant_id, or_(Environment.id == name_or_id, Environment.name == name_or_id)
    )
    found = (await session.scalars(query)).all()
    if not found:
        raise NotFoundError(
            f"There is no environment {name_or_id!r}.", remedy="List them: GET /v1/environments; create: POST."
        )
    # A name may look like another environment's id: the id counts.
    return next((row for row in found if row.id == name_or_id), found[0])


async def get_environment(database: Database, tenant_id: str, name_or_id: str) -> Environment:
    """An environment by id or name. Raises NotFoundError."""
    async with database.transaction() as session:
        return await find_environment(session, tenant_id, name_or_id)


async def environment_by_id(database: Database, environment_id: str) -> Environment:
    """For the platform's own services, which know no tenant. Raises NotFoundError."""
    async with database.transaction() as session:
        found = await session.get(Environment, environment_id)
    if found is None:
        raise NotFoundError(f"There is no environment {environment_id!r}.", remedy="Use its id, `env_...`.")
    return found


async def list_environments(database: Database, tenant_id: str, *, after: str | None, limit: int) -> list[Environment]:
    """Environments in the order in which they were made."""
    query = select(Environment).where(Environment.tenant_id == tenant_id).order_by(Environment.id).limit(limit)
    if after is not None:
        query = query.where(Environment.id > after)
    async with database.transaction() as session:
        return list(await session.scalars(query))
