"""The registry of trained models; their files are in the object store."""

from __future__ import annotations

from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from dreamgym.core.errors import ConflictError, InvalidInputError, ModelMissingError, NotFoundError
from dreamgym.gateway.database import Database
from dreamgym.gateway.environments import find_environment
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.job_lock import locked_job
from dreamgym.gateway.tables import Model


async def register_model(
    database: Database,
    job_id: str,
    attempt: int,
    *,
    role: str,
    version: str,
    location: str,
    sha256: str,
    manifest: dict[str, Any],
) -> str:
    """Enter a published model; answers its id. Repeating the call for the same version changes nothing.

    Raises ConflictError if the version is registered with other content: versions are immutable.
    """
    if role not in ("policy", "experience"):
        raise InvalidInputError(f"A model's role cannot be {role!r}.", remedy="Use policy or experience.")
    if not version or not location:
        raise InvalidInputError("A model needs a version and a location.")
    async with locked_job(database, job_id, attempt=attempt) as job:
        row = {
            "id": new_id("mdl"),
            "tenant_id": job.row.tenant_id,
            "environment_id": job.row.environment_id,
            "job_id": job_id,
            "role": role,
            "version": version,
            "location": location,
            "sha256": sha256,
            "manifest": manifest,
        }
        statement = insert(Model).values(row).on_conflict_do_nothing(index_elements=["version"])
        created: str | None = await job.session.scalar(statement.returning(Model.id))
        if created is not None:
            job.write_event("model.registered", {"id": created, "role": role, "version": version})
            return created
        known = (await job.session.scalars(select(Model).where(Model.version == version))).one()
        if (known.sha256, known.role, known.tenant_id) != (sha256, role, job.row.tenant_id):
            raise ConflictError(
                f"The version {version!r} is registered with other content.", remedy="Publish under a new version."
            )
        return known.id


async def record_fidelity(
    database: Database, job_id: str, attempt: int, *, version: str, fidelity: dict[str, Any]
) -> None:
    """Keep the newest measurement of an experience model of the job's environment. Raises ModelMissingError."""
    async with locked_job(database, job_id, attempt=attempt) as job:
        query = select(Model).where(Model.version == version, Model.environment_id == job.row.environment_id)
        model = (await job.session.scalars(query.with_for_update())).one_or_none()
        if model is None or model.role != "experience":
            raise ModelMissingError(f"There is no experience model {version!r} in this environment.")
        model.fidelity = fidelity
        job.write_event("model.measured", {"id": model.id, "version": version, **fidelity})


async def require_model(session: AsyncSession, tenant_id: str, name: str) -> Model:
    """A model of a tenant by id or version. Raises ModelMissingError."""
    query = select(Model).where(Model.tenant_id == tenant_id, or_(Model.id == name, Model.version == name))
    found = (await session.scalars(query)).first()
    if found is None:
        raise ModelMissingError(f"There is no model {name!r}.", remedy="List them: GET /v1/models.")
    return found


async def get_model(database: Database, tenant_id: str, name: str) -> Model:
    """A model of a tenant by id or version. Raises NotFoundError."""
    async with database.transaction() as session:
        try:
            return await require_model(session, tenant_id, name)
        except ModelMissingError as error:
            raise NotFoundError(error.message, remedy=error.remedy) from None


async def list_models(
    database: Database, tenant_id: str, *, environment: str | None, role: str | None, before: str | None, limit: int
) -> list[Model]:
    """The newest models first."""
    query = select(Model).where(Model.tenant_id == tenant_id).order_by(Model.id.desc()).limit(limit)
    async with database.transaction() as session:
        if environment is not None:
            query = query.where(Model.environment_id == (await find_environment(session, tenant_id, environment)).id)
        if role is not None:
            query = query.where(Model.role == role)
        if before is not None:
            query = query.where(Model.id < before)
        return list(await session.scalars(query))


async def resolve_model(database: Database, *, name: str, environment_id: str, role: str) -> Model:
    """For the platform's own services: by id or version, else the environment's newest of a role.

    Raises ModelMissingError.
    """
    if name:
        query = select(Model).where(or_(Model.id == name, Model.version == name))
        wanted = repr(name)
    elif environment_id and role:
        query = select(Model).where(Model.environment_id == environment_id, Model.role == role)
        wanted = f"of role {role} in environment {environment_id}"
    else:
        raise InvalidInputError("Name a model by id or version, or give both environment and role.")
    async with database.transaction() as session:
        found = (await session.scalars(query.order_by(Model.id.desc()).limit(1))).first()
    if found is None:
        raise ModelMissingError(f"There is no model {wanted}.", remedy="Train it first; GET /v1/models lists them.")
    return found
