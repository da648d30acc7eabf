"""A running gateway with a tenant of the test's own, and how tests talk to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx

from dreamgym.gateway.ids import new_id
from dreamgym.gateway.keys import create_key
from dreamgym.gateway.server import RunningGateway, running_gateway
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.tables import Tenant
from dreamgym.v1 import jobs_pb2 as pb
from dreamgym.v1.jobs_pb2_grpc import JobsStub
from dreamgym.wire.channel import open_channel
from dreamgym.wire.errors import error_from_rpc

TOKEN = "integration-token"
EPISODE = {
    "instruction": "put the mug on the desk",
    "initial_state": "You are in a room.",
    "success": True,
    "behaviour": "expert",
    "steps": [
        {"action": "take mug", "state": "You hold the mug."},
        {"action": "put mug on desk", "state": "You won!"},
    ],
}


@dataclass
class Platform:
    """A running gateway with a tenant of the test's own."""

    gateway: RunningGateway
    rest: httpx.AsyncClient
    jobs: Any
    tenant_id: str
    settings: GatewaySettings

    async def key(self, *scopes: str) -> dict[str, str]:
        _, secret = await create_key(
            self.gateway.state.database, self.tenant_id, name="test", scopes=list(scopes), expires_at=None
        )
        return {"X-API-Key": secret}

    async def environment(self, name: str = "household", adapter: str = "alfworld") -> str:
        answer = await self.rest.post("/v1/environments", json={"name": name, "adapter": adapter})
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    async def job(self, **spec: Any) -> dict[str, Any]:
        answer = await self.rest.post("/v1/jobs", json={"kind": "pipeline", "environment": "household", **spec})
        assert answer.status_code == 202, answer.text
        job: dict[str, Any] = answer.json()
        return job

    async def read(self, job: dict[str, Any]) -> dict[str, Any]:
        answer = await self.rest.get(f"/v1/jobs/{job['id']}")
        assert answer.status_code == 200, answer.text
        read: dict[str, Any] = answer.json()
        return read

    async def lease(self, job: dict[str, Any], worker: str = "worker-1") -> pb.LeaseResponse:
        response: pb.LeaseResponse = await call(
            self.jobs.Lease(pb.LeaseRequest(job_id=job["id"], worker=worker, celery_task_id="c", process_id=7))
        )
        return response

    async def events(self, job: dict[str, Any], last: str = "") -> list[tuple[str, dict[str, Any], str]]:
        """The whole feed of a job that has ended."""
        headers = {"Last-Event-ID": last} if last else {}
        found, event, data = [], "", ""
        async with self.rest.stream("GET", f"/v1/jobs/{job['id']}/events", headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    event = value
                elif field == "data":
                    data = value
                elif field == "id":
                    found.append((event, json.loads(data), value))
        return found


async def call(rpc: Any) -> Any:
    """A call whose failure is the typed error behind it."""
    try:
        return await rpc
    except grpc.RpcError as error:
        raise error_from_rpc(error, service="gateway") from None


async def eventually(check: Callable[[], Awaitable[Any]], timeout_s: float = 15.0) -> Any:
    """Wait until `check` answers something true, and answer that."""
    deadline = time.monotonic() + timeout_s
    while not (found := await check()):
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.05)
    return found


@asynccontextmanager
async def platform_with(settings: GatewaySettings) -> AsyncIterator[Platform]:
    async with running_gateway(settings) as gateway:
        tenant_id = new_id("ten")
        async with gateway.state.database.transaction() as session:
            session.add(Tenant(id=tenant_id, name=tenant_id))
        _, secret = await create_key(gateway.state.database, tenant_id, name="test", scopes=["admin"], expires_at=None)
        channel = open_channel(f"127.0.0.1:{gateway.jobs_port}", settings)
        base_url = f"http://127.0.0.1:{gateway.http_port}"
        async with httpx.AsyncClient(base_url=base_url, headers={"X-API-Key": secret}, timeout=30) as rest:
            yield Platform(gateway, rest, JobsStub(channel), tenant_id, settings)
        await channel.close(None)
