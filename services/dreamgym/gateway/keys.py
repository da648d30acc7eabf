"""API keys: made once, shown once, stored as a hash."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import delete, func, select, text, update

from dreamgym.core.errors import ConflictError, NotFoundError, UnauthenticatedError
from dreamgym.gateway.database import Database
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.tables import ApiKey, Tenant

log = logging.getLogger(__name__)
SCOPES = ("read", "write", "admin")
"""Each scope includes those before it."""
DEFAULT_TENANT = "default"
KEY_FILE = "admin.key"
_FIRST_START_LOCK = 7_421_093_366
_USED_RESOLUTION = timedelta(minutes=1)
_HINT_CHARS = 10


@dataclass(frozen=True)
class Principal:
    """Who calls, and what they may do."""

    tenant_id: str
    key_id: str
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        return any(SCOPES.index(own) >= SCOPES.index(scope) for own in self.scopes)


def _hash(secret: str) -> str:
    # A plain hash is enough: the secret has 256 random bits, there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()


async def authenticate(database: Database, secret: str) -> Principal:
    """The owner of a key. Raises UnauthenticatedError if there is none or the key has expired."""
    async with database.transaction() as session:
        query = select(ApiKey, func.now()).where(ApiKey.sha256 == _hash(secret))
        found = (await session.execute(query)).one_or_none()
        if found is None:
            raise UnauthenticatedError("The API key is not known.", remedy="Check it, or ask an admin for a new one.")
        key, now = found
        if key.expires_at is not None and key.expires_at <= now:
            raise UnauthenticatedError(
                f"The API key {key.hint}... expired at {key.expires_at.isoformat()}.",
                remedy="Ask an admin for a new one.",
            )
        if key.last_used_at is None or now - key.last_used_at > _USED_RESOLUTION:
            await session.execute(update(ApiKey).where(ApiKey.id == key.id).values(last_used_at=now))
        return Principal(tenant_id=key.tenant_id, key_id=key.id, scopes=frozenset(key.scopes))


async def create_key(
    database: Database, tenant_id: str, *, name: str, scopes: list[str], expires_at: datetime | None
) -> tuple[ApiKey, str]:
    """A new key and its secret, which cannot be read again."""
    secret = f"dgk_{secrets.token_urlsafe(32)}"
    async with database.transaction() as session:
        key = ApiKey(
            id=new_id("key"),
            tenant_id=tenant_id,
            name=name,
            sha256=_hash(secret),
            hint=secret[:_HINT_CHARS],
            scopes=sorted(set(scopes), key=SCOPES.index),
            expires_at=expires_at,
        )
        session.add(key)
        await session.flush()
        return key, secret


async def list_keys(database: Database, tenant_id: str) -> list[ApiKey]:
    """All keys of a tenant, the newest first."""
    async with database.transaction() as session:
        return list(
            await session.scalars(select(ApiKey).where(ApiKey.tenant_id == tenant_id).order_by(ApiKey.id.desc()))
        )


async def delete_key(database: Database, principal: Principal, key_id: str) -> None:
    """Revoke a key at once. Raises ConflictError for the key that makes the call, so that nobody locks himself out."""
    if key_id == principal.key_id:
        raise ConflictError("A key cannot delete itself.", remedy="Delete it with another admin key.")
    async with database.transaction() as session:
        statement = delete(ApiKey).where(ApiKey.tenant_id == principal.tenant_id, ApiKey.id == key_id)
        if await session.scalar(statement.returning(ApiKey.id)) is None:
            raise NotFoundError(f"There is no key {key_id!r}.", remedy="List them: GET /v1/keys.")


async def ensure_first_key(database: Database, state_dir: Path | None) -> None:
    """At the very first start make the tenant and one admin key: into STATE/admin.key (0600), else into the log once."""
    async with database.transaction() as session:
        # Two gateways that start together must not make two keys.
        await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _FIRST_START_LOCK})
        if await session.scalar(select(ApiKey.id).limit(1)) is not None:
            return
        tenant_id = await session.scalar(select(Tenant.id).where(Tenant.name == DEFAULT_TENANT))
        if tenant_id is None:
            tenant_id = new_id("ten")
            session.add(Tenant(id=tenant_id, name=DEFAULT_TENANT))
            await session.flush()
        secret = f"dgk_{secrets.token_urlsafe(32)}"
        session.add(
            ApiKey(
                id=new_id("key"),
                tenant_id=tenant_id,
                name="first admin key",
                sha256=_hash(secret),
                hint=secret[:_HINT_CHARS],
                scopes=["admin"],
                created_at=datetime.now(UTC),
            )
        )
        await session.flush()
        # Before the commit: a key that nobody can read must not be the first key.
        if state_dir is None:
            log.warning("admin key: %s (shown once)", secret)
        else:
            path = state_dir / KEY_FILE
            _write_private(path, secret + "\n")
            log.info("the first admin key is in %s", path)


def _write_private(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
