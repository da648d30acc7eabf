"""Who may do what: keys, scopes, tenants."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from dreamgym.embedded.migrate import find_alembic_ini, migrate
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.gateway.database import Database
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.keys import KEY_FILE, create_key
from dreamgym.gateway.server import running_gateway
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.tables import Tenant
from support.gateway import Platform

pytestmark = pytest.mark.integration


async def test_nothing_is_served_without_a_key_but_the_probes(platform: Platform) -> None:
    async with httpx.AsyncClient(base_url=platform.rest.base_url) as stranger:
        for path in ("/v1/jobs", "/v1/environments", "/v1/models", "/v1/keys"):
            answer = await stranger.get(path)
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["type"] == "urn:dreamgym:problem:unauthenticated"
            assert answer.json()["remedy"]
        assert (await stranger.get("/healthz")).status_code == 200
        assert (await stranger.get("/readyz")).status_code == 200
        assert "dreamgym_http_requests_total" in (await stranger.get("/metrics")).text


async def test_a_key_may_do_what_its_scope_says_and_no_more(platform: Platform) -> None:
    reader, writer = await platform.key("read"), await platform.key("write")
    body = {"name": "office"}
    assert (await platform.rest.post("/v1/environments", json=body, headers=reader)).status_code == 403
    assert (await platform.rest.post("/v1/environments", json=body, headers=writer)).status_code == 201
    assert (await platform.rest.get("/v1/environments/office", headers=reader)).status_code == 200
    assert (await platform.rest.get("/v1/keys", headers=writer)).status_code == 403


async def test_a_key_is_shown_once_works_as_bearer_and_ends_when_it_is_deleted(platform: Platform) -> None:
    made = (await platform.rest.post("/v1/keys", json={"name": "laptop", "scopes": ["read"]})).json()
    listed = (await platform.rest.get("/v1/keys")).json()["items"]
    assert {key["name"] for key in listed} == {"laptop", "test"}
    assert all("key" not in key for key in listed)
    async with httpx.AsyncClient(base_url=platform.rest.base_url) as other:
        bearer = {"Authorization": f"Bearer {made['key']}"}
        assert (await other.get("/v1/jobs", headers=bearer)).status_code == 200
        assert (await platform.rest.delete(f"/v1/keys/{made['id']}")).status_code == 204
        assert (await other.get("/v1/jobs", headers=bearer)).status_code == 401


async def test_an_expired_key_is_refused(platform: Platform) -> None:
    body = {"name": "old", "scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}
    made = (await platform.rest.post("/v1/keys", json=body)).json()
    answer = await platform.rest.get("/v1/jobs", headers={"X-API-Key": made["key"]})
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


async def test_the_first_start_writes_one_private_admin_key(
    embedded_postgres: EmbeddedPostgres, settings: GatewaySettings, tmp_path: Path
) -> None:
    name = new_id("fresh")
    embedded_postgres.ensure_database(name)
    migrate(embedded_postgres.url(name), find_alembic_ini(), tmp_path / "alembic.log")
    fresh = settings.model_copy(update={"database_url": embedded_postgres.url(name)})
    path = tmp_path / "state" / KEY_FILE
    async with running_gateway(fresh) as gateway:
        assert path.stat().st_mode & 0o777 == 0o600
        first = path.read_text()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}") as rest:
            assert (await rest.get("/v1/keys", headers={"X-API-Key": first.strip()})).status_code == 200
    async with running_gateway(fresh):
        assert path.read_text() == first


async def test_a_tenant_does_not_see_another_ones_things(platform: Platform, settings: GatewaySettings) -> None:
    await platform.environment()
    job = await platform.job()
    database = Database(settings)
    other = new_id("ten")
    async with database.transaction() as session:
        session.add(Tenant(id=other, name=other))
    _, secret = await create_key(database, other, name="other", scopes=["admin"], expires_at=None)
    await database.close()
    stranger = {"X-API-Key": secret}
    for path in (f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}/events", "/v1/environments/household"):
        assert (await platform.rest.get(path, headers=stranger)).status_code == 404
    assert (await platform.rest.post(f"/v1/jobs/{job['id']}/cancel", headers=stranger)).status_code == 404
    assert (await platform.rest.get("/v1/jobs", headers=stranger)).json()["items"] == []
