"""What every answer has, and bodies that no route takes."""

from __future__ import annotations

import json

import pytest

from dreamgym.gateway.settings import GatewaySettings
from support.gateway import Platform, platform_with

pytestmark = pytest.mark.integration


async def test_every_answer_has_a_request_id_and_forbids_foreign_scripts(platform: Platform) -> None:
    answer = await platform.rest.get("/v1/jobs", headers={"X-Request-ID": "mine-1"})
    assert answer.headers["X-Request-ID"] == "mine-1"
    page = await platform.rest.get("/")
    assert "text/html" in page.headers["content-type"]
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "unsafe" not in page.headers["Content-Security-Policy"]


async def test_a_body_that_is_too_large_is_refused(settings: GatewaySettings) -> None:
    async with platform_with(settings.model_copy(update={"max_body_bytes": 1000})) as platform:
        answer = await platform.rest.post("/v1/environments", json={"name": "x", "description": "y" * 2000})
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_a_method_that_a_path_lacks_is_answered_with_those_that_it_has(platform: Platform) -> None:
    answer = await platform.rest.put("/v1/jobs")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, POST")
    assert answer.json()["code"] == "method_not_allowed"


async def test_text_that_no_database_can_hold_is_refused(platform: Platform) -> None:
    answer = await platform.rest.post("/v1/keys", json={"name": "a\0b", "scopes": ["read"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert (await platform.rest.get("/v1/jobs/%00")).status_code == 422


async def test_a_job_without_a_kind_is_told_the_kinds(platform: Platform) -> None:
    answer = await platform.rest.post("/v1/jobs", json={"environment": "household"})
    assert answer.json()["errors"][0]["field"] == "kind"
    assert "pipeline" in answer.json()["remedy"]


async def test_the_description_of_the_api_is_openapi_3_1_and_names_problems(platform: Platform) -> None:
    document = (await platform.rest.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    create = document["paths"]["/v1/jobs"]["post"]
    assert "application/problem+json" in create["responses"]["422"]["content"]
    assert create["requestBody"]["content"]["application/json"]["examples"]
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
