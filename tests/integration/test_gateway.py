"""The gateway as customers and trainers meet it: REST and gRPC on real ports, over PostgreSQL, Valkey and replay."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import redis
from pydantic import SecretStr
from sqlalchemy import func, select

from dreamgym.core.errors import ConflictError, DreamGymError, LeaseLostError, ModelMissingError
from dreamgym.embedded.migrate import find_alembic_ini, migrate
from dreamgym.embedded.ports import choose_port
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.embedded.valkey import EmbeddedValkey
from dreamgym.gateway.database import Database
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.keys import KEY_FILE, create_key
from dreamgym.gateway.server import RunningGateway, running_gateway
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.tables import Job, JobEvent, Tenant
from dreamgym.inference.model_store import ModelStore
from dreamgym.replay.server import start as start_replay
from dreamgym.replay.settings import ReplaySettings
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.v1 import jobs_pb2 as pb
from dreamgym.v1.environment_pb2_grpc import EnvironmentServicer, add_EnvironmentServicer_to_server
from dreamgym.v1.jobs_pb2_grpc import JobsStub
from dreamgym.wire.channel import open_channel
from dreamgym.wire.errors import error_from_rpc, failure_message
from dreamgym.wire.server import start_server

pytestmark = pytest.mark.integration
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


@pytest.fixture(scope="module")
def broker(embedded_postgres: EmbeddedPostgres) -> Iterator[str]:
    with EmbeddedValkey(embedded_postgres.state_dir) as server:
        yield server.url()


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


@pytest.fixture
def settings(database_url: str, broker: str, tmp_path: Path) -> GatewaySettings:
    return GatewaySettings(
        database_url=database_url,
        broker_url=broker,
        service_token=SecretStr(TOKEN),
        object_store=tmp_path / "objects",
        state_dir=tmp_path / "state",
        gateway_port=0,
        jobs_address="127.0.0.1:0",
        replay_address=f"127.0.0.1:{choose_port()}",
        experience_address=f"127.0.0.1:{choose_port()}",
        bridge_address=f"127.0.0.1:{choose_port()}",
        lease_ttl_s=20.0,
        sweep_interval_s=0.1,
        feed_poll_s=0.05,
        drain_s=1.0,
    )


@pytest.fixture
async def platform(settings: GatewaySettings) -> AsyncIterator[Platform]:
    async with platform_with(settings) as platform:
        yield platform


@pytest.fixture
async def replay(settings: GatewaySettings) -> AsyncIterator[None]:
    shared = ReplaySettings(
        database_url=settings.database_url, service_token=settings.service_token, object_store=settings.object_store
    )
    server, _, store = await start_replay(shared, settings.replay_address)
    yield
    await server.stop(None)
    await store.close()


# Keys


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


# Environments and uploads


async def test_creating_the_same_environment_again_is_no_error_and_a_different_one_is(platform: Platform) -> None:
    body = {"name": "household", "description": "A house."}
    first = await platform.rest.post("/v1/environments", json=body)
    again = await platform.rest.post("/v1/environments", json=body)
    other = await platform.rest.post("/v1/environments", json={**body, "description": "Another house."})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json() == first.json()
    assert "description" in other.json()["detail"]


async def test_faulty_task_lines_are_reported_by_number_and_the_rest_is_kept(platform: Platform) -> None:
    await platform.environment()
    lines = [
        '{"id": "a", "instruction": "tidy up"}',
        "not json",
        "",
        '{"id": "b", "instruction": "cook", "colour": "red"}',
        '{"id": "c", "instruction": "wash", "criterion": {"contains": {"over": "nowhere", "text": "x"}}}',
        '{"id": "d", "instruction": "clean", "split": "test"}',
        '{"id": "a", "instruction": "something else"}',
    ]
    answer = (await platform.rest.post("/v1/environments/household/tasks", content="\n".join(lines))).json()
    assert answer["accepted"] == 2
    assert [issue["line"] for issue in answer["issues"]] == [2, 4, 5, 7]
    assert "colour" in answer["issues"][1]["remedy"]
    again = (await platform.rest.post("/v1/environments/household/tasks", content=lines[0])).json()
    assert (again["accepted"], again["already_there"]) == (0, 1)
    test_split = (await platform.rest.get("/v1/environments/household/tasks?split=test")).json()
    assert [task["id"] for task in test_split["items"]] == ["d"]


async def test_tasks_are_listed_page_by_page(platform: Platform) -> None:
    await platform.environment()
    given = [{"id": f"t{number}", "instruction": f"task {number}"} for number in range(7)]
    await platform.rest.post("/v1/environments/household/tasks", json=given)
    found, cursor = [], None
    while True:
        query = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = (await platform.rest.get("/v1/environments/household/tasks", params=query)).json()
        found += [task["id"] for task in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert found == [task["id"] for task in given]
    foreign = await platform.rest.get("/v1/jobs", params={"cursor": "dGFza3M6MQ"})
    assert foreign.status_code == 422


async def test_trajectories_reach_the_replay_service_once(platform: Platform, replay: None) -> None:
    await platform.environment()
    lines = [
        json.dumps({**EPISODE, "task_id": "mug", "split": "train"}),
        "{broken",
        json.dumps({**EPISODE, "success": False, "episode_id": "mine"}),
        json.dumps({**EPISODE, "termination": "failure"}),
        json.dumps({**EPISODE, "steps": []}),
    ]
    body = gzip.compress("\n".join(lines).encode())
    url = "/v1/environments/household/trajectories"
    first = (await platform.rest.post(url, content=body, headers={"Content-Encoding": "gzip"})).json()
    assert (first["episodes_stored"], first["transitions_stored"], first["already_there"]) == (2, 4, 0)
    assert [issue["line"] for issue in first["issues"]] == [2, 4, 5]
    assert first["tasks_created"] == 2
    again = (await platform.rest.post(url, content="\n".join(lines))).json()
    assert (again["episodes_stored"], again["already_there"], again["tasks_created"]) == (0, 2, 0)
    statistics = (await platform.rest.get("/v1/environments/household/statistics")).json()
    assert (statistics["episodes"], statistics["transitions"]) == (2, 4)
    assert statistics["counts"][0]["source"] == "seed"
    assert statistics["counts"][0]["successes"] == 1


async def test_a_truncated_gzip_upload_keeps_what_came_before(platform: Platform, replay: None) -> None:
    await platform.environment()
    lines = "\n".join(json.dumps({**EPISODE, "episode_id": f"e{n}", "metadata": {"n": n}}) for n in range(200))
    body = gzip.compress(lines.encode())[:-200]
    url = "/v1/environments/household/trajectories"
    answer = (await platform.rest.post(url, content=body, headers={"Content-Encoding": "gzip"})).json()
    assert 0 < answer["episodes_stored"] < 200
    assert "gzip" in answer["issues"][-1]["reason"]


async def test_without_the_replay_service_an_upload_says_so(platform: Platform) -> None:
    await platform.environment()
    url = "/v1/environments/household/trajectories"
    many = "\n".join(json.dumps({**EPISODE, "episode_id": f"e{n}"}) for n in range(300))
    for content in ("", json.dumps(EPISODE), many):
        answer = await platform.rest.post(url, content=content)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["Retry-After"]
    assert "replay" in answer.json()["detail"]


# Jobs


async def test_an_unknown_field_is_refused_by_name(platform: Platform) -> None:
    await platform.environment()
    spec = {
        "kind": "pipeline",
        "environment": "household",
        "stages": [{"kind": "evaluate"}, {"kind": "train_policy", "learning_rat": 1}],
    }
    answer = await platform.rest.post("/v1/jobs", json=spec)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "stages.1.learning_rat"
    assert "unknown field 'learning_rat'" in answer.json()["detail"]
    assert "learning_rate" in answer.json()["remedy"]
    broken = await platform.rest.post("/v1/jobs", content=b'{"kind":', headers={"Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["code"]) == (400, "malformed_body")


async def test_a_job_that_cannot_work_is_refused_at_once(platform: Platform) -> None:
    await platform.environment("dream-only", adapter="")
    real = await platform.rest.post("/v1/jobs", json={"kind": "sim_to_real", "environment": "dream-only"})
    assert (real.status_code, real.json()["code"]) == (422, "invalid_input")
    spec = {"kind": "evaluate", "environment": "dream-only", "where": "dream", "policy": "mdl_nowhere"}
    model = await platform.rest.post("/v1/jobs", json=spec)
    assert (model.status_code, model.json()["code"]) == (404, "model_missing")
    nowhere = await platform.rest.post("/v1/jobs", json={"kind": "pipeline", "environment": "nowhere"})
    assert nowhere.status_code == 404


async def test_a_repeated_post_with_the_same_idempotency_key_starts_one_job(platform: Platform) -> None:
    await platform.environment()
    headers = {"Idempotency-Key": "once"}
    spec = {"kind": "pipeline", "environment": "household"}
    answers = await asyncio.gather(*(platform.rest.post("/v1/jobs", json=spec, headers=headers) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" in answer.headers for answer in answers) == 3
    other = await platform.rest.post("/v1/jobs", json={**spec, "seed": 5}, headers=headers)
    assert other.status_code == 409


async def test_a_job_is_sent_to_the_train_queue(platform: Platform, broker: str) -> None:
    await platform.environment()
    job = await platform.job()

    async def sent() -> bool:
        with redis.Redis.from_url(broker) as client:
            return any(job["id"].encode() in message for message in client.lrange("train", 0, -1))

    await eventually(sent)


async def test_a_job_launched_while_the_broker_is_away_is_sent_when_it_is_back(
    settings: GatewaySettings, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.gateway.dispatch._RETRY_BROKER_S", 0.2)
    dead = settings.model_copy(update={"broker_url": f"redis://127.0.0.1:{choose_port()}/0"})
    async with platform_with(dead) as platform:
        await platform.environment()
        job = await platform.job()
        assert job["state"] == "queued"

        async def said() -> str:
            return str((await platform.read(job))["dispatch_error"])

        assert await eventually(said)
    async with platform_with(settings) as recovered:
        state = recovered.gateway.state

        async def sent() -> bool:
            async with state.database.transaction() as session:
                kinds = select(JobEvent.type).where(JobEvent.job_id == job["id"]).order_by(JobEvent.id)
                return list(await session.scalars(kinds)) == ["job.created", "dispatch.failed", "dispatch.sent"]

        await eventually(sent)


async def test_a_whole_life_of_a_job_is_told_by_its_feed(platform: Platform) -> None:
    environment_id = await platform.environment()
    job = await platform.job(stages=[{"kind": "evaluate", "label": "first"}, {"kind": "measure_fidelity"}])
    lease = await platform.lease(job)
    assert (lease.attempt, lease.environment_id) == (1, environment_id)
    assert [stage.kind for stage in lease.stages] == ["evaluate", "measure_fidelity"]
    for index in (0, 1):
        await call(platform.jobs.StartStage(pb.StartStageRequest(job_id=job["id"], attempt=1, stage=index)))
        beat = pb.HeartbeatRequest(
            job_id=job["id"],
            attempt=1,
            metrics=[pb.MetricPoint(stage=index, name="loss", step=step, value=1 / (step + 1)) for step in range(3)],
            events=[pb.EventRecord(type="stage.note", data='{"text": "hello"}')],
        )
        answer = await call(platform.jobs.Heartbeat(beat))
        assert answer.command == pb.JOB_COMMAND_CONTINUE
        finished = pb.FinishStageRequest(
            job_id=job["id"], attempt=1, stage=index, state="succeeded", result='{"real": {"value": 0.5, "n": 4}}'
        )
        await call(platform.jobs.FinishStage(finished))
    running = await platform.read(job)
    assert (running["state"], running["progress"]["stages_done"]) == ("running", 2)
    await call(platform.jobs.Finish(pb.FinishRequest(job_id=job["id"], attempt=1, state="succeeded", result="{}")))
    ended = await platform.read(job)
    assert ended["state"] == "succeeded"
    assert ended["stages"][0]["result"] == {"real": {"value": 0.5, "n": 4}}
    assert ended["stages"][0]["seconds"] >= 0
    assert [point["value"] for point in ended["newest_metrics"]] == [pytest.approx(1 / 3)] * 2

    feed = await platform.events(job)
    types = [data["type"] for event, data, _ in feed if event == "job_event"]
    assert [kind for kind in types if kind != "dispatch.sent"] == [
        "job.created",
        "job.state",
        *["stage.started", "stage.note", "stage.finished"] * 2,
        "job.state",
    ]
    assert sum(event == "metric" for event, _, _ in feed) == 6
    assert (feed[-1][0], feed[-1][1]) == ("end", {"state": "succeeded"})
    middle = len(feed) // 2
    assert await platform.events(job, last=feed[middle][2]) == feed[middle + 1 :]

    query: dict[str, str | int] = {"name": "loss", "stage": 1}
    series = (await platform.rest.get(f"/v1/jobs/{job['id']}/metrics", params=query)).json()["series"]
    assert [point[0] for point in series[0]["points"]] == [0, 1, 2]


async def test_the_feed_of_a_running_job_brings_news_at_once(platform: Platform) -> None:
    await platform.environment()
    job = await platform.job()
    await platform.lease(job)
    seen: list[str] = []

    async def follow() -> None:
        async with platform.rest.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            async for line in answer.aiter_lines():
                seen.append(line)

    follower = asyncio.create_task(follow())

    async def connected() -> bool:
        return any("job.created" in line for line in seen)

    await eventually(connected)
    point = pb.MetricPoint(stage=0, name="reward", step=1, value=0.25)
    await call(platform.jobs.Heartbeat(pb.HeartbeatRequest(job_id=job["id"], attempt=1, metrics=[point])))

    async def arrived() -> bool:
        return any('"reward"' in line for line in seen)

    await eventually(arrived, 2.0)
    await call(platform.jobs.Finish(pb.FinishRequest(job_id=job["id"], attempt=1, state="failed")))
    await asyncio.wait_for(follower, 5)
    assert "event: end" in seen


async def test_of_two_workers_one_gets_the_job(platform: Platform) -> None:
    await platform.environment()
    job = await platform.job()
    results = await asyncio.gather(*(platform.lease(job, f"worker-{n}") for n in range(5)), return_exceptions=True)
    assert sum(isinstance(result, pb.LeaseResponse) for result in results) == 1
    assert sum(isinstance(result, ConflictError) for result in results) == 4


async def test_a_lost_worker_gives_its_job_to_the_next_and_writes_no_more(settings: GatewaySettings) -> None:
    async with platform_with(settings.model_copy(update={"lease_ttl_s": 0.3})) as platform:
        await platform.environment()
        job = await platform.job()
        await platform.lease(job)
        await call(platform.jobs.StartStage(pb.StartStageRequest(job_id=job["id"], attempt=1, stage=0)))

        async def queued() -> bool:
            return bool((await platform.read(job))["state"] == "queued")

        await eventually(queued)
        assert (await platform.read(job))["stages"][0]["state"] == "pending"
        second = await platform.lease(job, "worker-2")
        assert second.attempt == 2
        for late in (
            platform.jobs.Heartbeat(pb.HeartbeatRequest(job_id=job["id"], attempt=1)),
            platform.jobs.Finish(pb.FinishRequest(job_id=job["id"], attempt=1, state="succeeded")),
            platform.jobs.StartStage(pb.StartStageRequest(job_id=job["id"], attempt=1, stage=0)),
        ):
            with pytest.raises(LeaseLostError):
                await call(late)


async def test_a_gateway_that_was_away_hears_its_workers_before_it_gives_them_up(settings: GatewaySettings) -> None:
    short = settings.model_copy(update={"lease_ttl_s": 0.2})
    async with platform_with(short) as platform:
        await platform.environment()
        job = await platform.job()
        lease = await platform.lease(job)
    database = Database(settings)

    async def expired() -> bool:
        query = select(Job.lease_expires_at < func.now(), Job.state).where(Job.id == job["id"])
        async with database.transaction() as session:
            over, state = (await session.execute(query)).one()
            assert state == "running"
            return bool(over)

    await eventually(expired)
    await database.close()
    async with platform_with(settings) as back:
        swept = back.gateway.state.sweeper
        await swept.sweep()
        beat = pb.HeartbeatRequest(job_id=job["id"], attempt=lease.attempt)
        assert (await call(back.jobs.Heartbeat(beat))).command == pb.JOB_COMMAND_CONTINUE
        await call(back.jobs.Finish(pb.FinishRequest(job_id=job["id"], attempt=1, state="cancelled")))


async def test_repeated_points_replace_the_older_ones_and_are_sent_again(platform: Platform) -> None:
    await platform.environment()
    job = await platform.job()
    await platform.lease(job)
    for value in (1.0, 2.0):
        points = [pb.MetricPoint(stage=0, name="loss", step=step, value=value) for step in (1, 1, 2)]
        await call(platform.jobs.Heartbeat(pb.HeartbeatRequest(job_id=job["id"], attempt=1, metrics=points)))
    series = (await platform.rest.get(f"/v1/jobs/{job['id']}/metrics")).json()["series"]
    assert series[0]["points"] == [[1, 2.0], [2, 2.0]]
    await call(platform.jobs.Finish(pb.FinishRequest(job_id=job["id"], attempt=1, state="succeeded")))
    values = [data["value"] for event, data, _ in await platform.events(job) if event == "metric"]
    assert values == [2.0, 2.0]


@pytest.mark.parametrize(
    ("command", "answer", "end"),
    [("pause", pb.JOB_COMMAND_PAUSE, "paused"), ("cancel", pb.JOB_COMMAND_CANCEL, "cancelled")],
)
async def test_a_worker_learns_with_its_next_heartbeat_what_the_user_wants(
    platform: Platform, command: str, answer: int, end: str
) -> None:
    await platform.environment()
    job = await platform.job()
    await platform.lease(job)
    asked = await platform.rest.post(f"/v1/jobs/{job['id']}/{command}")
    assert asked.status_code == 202
    beat = await call(platform.jobs.Heartbeat(pb.HeartbeatRequest(job_id=job["id"], attempt=1)))
    assert beat.command == answer
    await call(platform.jobs.Finish(pb.FinishRequest(job_id=job["id"], attempt=1, state=end)))
    assert (await platform.read(job))["state"] == end


async def test_a_pause_that_became_a_cancel_ends_cancelled(platform: Platform) -> None:
    await platform.environment()
    job = await platform.job()
    await platform.lease(job)
    await platform.rest.post(f"/v1/jobs/{job['id']}/pause")
    await platform.rest.post(f"/v1/jobs/{job['id']}/cancel")
    await call(platform.jobs.Finish(pb.FinishRequest(job_id=job["id"], attempt=1, state="paused")))
    assert (await platform.read(job))["state"] == "cancelled"


async def test_a_job_is_paused_resumed_failed_and_retried_and_keeps_finished_stages(platform: Platform) -> None:
    await platform.environment()
    job = await platform.job(stages=[{"kind": "evaluate"}, {"kind": "measure_fidelity"}])
    url = f"/v1/jobs/{job['id']}"
    assert (await platform.rest.post(f"{url}/pause")).json()["state"] == "paused"
    assert (await platform.rest.post(f"{url}/retry")).status_code == 409
    assert (await platform.rest.post(f"{url}/resume")).json()["state"] == "queued"
    await platform.lease(job)
    await call(
        platform.jobs.FinishStage(
            pb.FinishStageRequest(job_id=job["id"], attempt=1, stage=0, state="succeeded", result="{}")
        )
    )
    await call(platform.jobs.StartStage(pb.StartStageRequest(job_id=job["id"], attempt=1, stage=1)))
    failed = pb.FinishRequest(
        job_id=job["id"], attempt=1, state="failed", error_code="model_missing", error_message="m", error_remedy="r"
    )
    await call(platform.jobs.Finish(failed))
    after = await platform.read(job)
    assert after["error"] == {"code": "model_missing", "message": "m", "remedy": "r"}
    assert [stage["state"] for stage in after["stages"]] == ["succeeded", "failed"]
    retried = (await platform.rest.post(f"{url}/retry")).json()
    assert (retried["state"], retried["error"]) == ("queued", None)
    assert [stage["state"] for stage in retried["stages"]] == ["succeeded", "pending"]
    assert (await platform.lease(job)).attempt == 2
    await platform.rest.post(f"{url}/cancel")
    await call(platform.jobs.Finish(pb.FinishRequest(job_id=job["id"], attempt=2, state="cancelled")))
    again = await platform.rest.post(f"{url}/cancel")
    assert again.status_code == 409
    assert "final" in again.json()["remedy"]


# Models, environments and tasks for the trainer


async def test_a_model_is_registered_once_found_and_downloaded(platform: Platform, settings: GatewaySettings) -> None:
    environment_id = await platform.environment()
    job = await platform.job()
    await platform.lease(job)
    version = new_id("policy")
    store = ModelStore(settings.object_store)
    with store.writing(f"models/{version}") as folder:
        (folder / "config.json").write_text('{"layers": 2}')
        (folder / "weights").mkdir()
        (folder / "weights" / "model.safetensors").write_bytes(bytes(range(256)) * 9000)
    model = pb.Model(role="policy", version=version, location=f"models/{version}", sha256="abc", manifest='{"seed": 1}')
    request = pb.RegisterModelRequest(job_id=job["id"], attempt=1, model=model)
    first, again = await call(platform.jobs.RegisterModel(request)), await call(platform.jobs.RegisterModel(request))
    assert first.id == again.id
    model.sha256 = "other"
    with pytest.raises(ConflictError):
        await call(platform.jobs.RegisterModel(pb.RegisterModelRequest(job_id=job["id"], attempt=1, model=model)))

    newest = await call(platform.jobs.GetModel(pb.GetModelRequest(environment_id=environment_id, role="policy")))
    assert (newest.version, newest.job_id) == (version, job["id"])
    with pytest.raises(ModelMissingError):
        await call(platform.jobs.GetModel(pb.GetModelRequest(environment_id=environment_id, role="experience")))
    listed = (await platform.rest.get("/v1/models", params={"role": "policy"})).json()["items"]
    assert [item["id"] for item in listed] == [first.id]

    answer = await platform.rest.get(f"/v1/models/{version}/download")
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        names = {member.name for member in archive}
        weights = archive.extractfile(f"{version}/weights/model.safetensors")
        assert weights is not None
        assert weights.read() == bytes(range(256)) * 9000
    assert names == {f"{version}/config.json", f"{version}/weights/model.safetensors", f"{version}/PUBLISHED.json"}


async def test_a_trainer_reads_the_environment_and_its_tasks(platform: Platform) -> None:
    environment_id = await platform.environment()
    given = [{"id": f"t{n}", "instruction": "x", "split": "test" if n % 2 else "train"} for n in range(6)]
    await platform.rest.post("/v1/environments/household/tasks", json=given)
    record = await call(platform.jobs.GetEnvironment(pb.GetEnvironmentRequest(environment_id=environment_id)))
    assert (record.name, record.adapter) == ("household", "alfworld")
    request = pb.ListTasksRequest(environment_id=environment_id, splits=["test"], limit=2)
    assert [task.id async for task in platform.jobs.ListTasks(request)] == ["t1", "t3"]


async def test_a_call_without_the_service_token_is_refused(platform: Platform) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{platform.gateway.jobs_port}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            await JobsStub(channel).GetModel(pb.GetModelRequest(id="x"))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


# Play


class CountingWorld(EnvironmentServicer):
    """An environment that counts actions and fails when told to; a customer could serve the like."""

    def __init__(self) -> None:
        self.open = 0
        self.resets: list[env_pb.Reset] = []

    async def Describe(self, request: env_pb.DescribeRequest, context: Any) -> env_pb.EnvironmentInfo:  # noqa: N802
        return env_pb.EnvironmentInfo(environment_id=request.environment_id)

    async def Play(self, request_iterator: Any, context: Any) -> AsyncIterator[env_pb.PlayResponse]:  # noqa: N802
        self.open += 1
        count = 0
        try:
            async for request in request_iterator:
                if request.HasField("reset"):
                    self.resets.append(request.reset)
                    yield env_pb.PlayResponse(observation=env_pb.Observation(state="start", valid_action=True))
                    continue
                if request.act.action == "break":
                    error = DreamGymError("The world broke.", remedy="Start again.")
                    yield env_pb.PlayResponse(failure=failure_message(error))
                    return
                count += 1
                done = count == 2
                yield env_pb.PlayResponse(
                    observation=env_pb.Observation(
                        state=f"{count}: {request.act.action}",
                        done=done,
                        success=done,
                        termination=env_pb.TERMINATION_REASON_SUCCESS
                        if done
                        else env_pb.TERMINATION_REASON_UNSPECIFIED,
                        valid_action=True,
                    )
                )
        finally:
            self.open -= 1


@pytest.fixture
async def world(settings: GatewaySettings) -> AsyncIterator[CountingWorld]:
    world = CountingWorld()
    server, _ = await start_server(
        settings.bridge_address, settings, [lambda server: add_EnvironmentServicer_to_server(world, server)], []
    )
    yield world
    await server.stop(None)


async def test_an_episode_is_played_over_rest(platform: Platform, world: CountingWorld) -> None:
    await platform.environment()
    await platform.rest.post("/v1/environments/household/tasks", json=[{"id": "mug", "instruction": "find the mug"}])
    body = {"task_id": "mug", "where": "real", "transition_budget": 5, "seed": 3}
    opened = await platform.rest.post("/v1/environments/household/play", json=body)
    assert opened.status_code == 201, opened.text
    session = opened.json()["session"]
    assert (opened.json()["state"], opened.json()["instruction"]) == ("start", "find the mug")
    assert (world.resets[0].transition_budget, world.resets[0].seed, world.resets[0].adapter) == (5, 3, "alfworld")
    first = (await platform.rest.post(f"/v1/play/{session}/act", json={"action": "look"})).json()
    assert (first["state"], first["done"], first["step"]) == ("1: look", False, 1)
    second = (await platform.rest.post(f"/v1/play/{session}/act", json={"action": "take"})).json()
    assert (second["done"], second["success"], second["termination"]) == (True, True, "success")
    after = await platform.rest.post(f"/v1/play/{session}/act", json={"action": "more"})
    assert after.status_code == 409
    assert (await platform.rest.delete(f"/v1/play/{session}")).status_code == 204

    async def freed() -> bool:
        return world.open == 0

    await eventually(freed)


async def test_a_failure_of_the_world_is_a_problem_and_ends_the_session(
    platform: Platform, world: CountingWorld
) -> None:
    await platform.environment()
    body = {"instruction": "x", "where": "real", "transition_budget": 5}
    session = (await platform.rest.post("/v1/environments/household/play", json=body)).json()["session"]
    broken = await platform.rest.post(f"/v1/play/{session}/act", json={"action": "break"})
    assert (broken.status_code, broken.json()["detail"], broken.json()["remedy"]) == (
        500,
        "The world broke.",
        "Start again.",
    )
    assert (await platform.rest.post(f"/v1/play/{session}/act", json={"action": "x"})).status_code == 404


async def test_idle_sessions_end_and_too_many_are_refused(settings: GatewaySettings, world: CountingWorld) -> None:
    few = settings.model_copy(update={"max_play_sessions": 1, "play_idle_s": 0.4})
    async with platform_with(few) as platform:
        await platform.environment()
        body = {"instruction": "x", "where": "real", "transition_budget": 5}
        opened = await platform.rest.post("/v1/environments/household/play", json=body)
        assert opened.status_code == 201
        second = await platform.rest.post("/v1/environments/household/play", json=body)
        assert (second.status_code, second.json()["code"]) == (429, "capacity")

        async def freed() -> bool:
            return world.open == 0

        await eventually(freed)


async def test_a_dead_world_is_named(platform: Platform) -> None:
    await platform.environment()
    body = {"instruction": "x", "where": "real", "transition_budget": 5}
    answer = await platform.rest.post("/v1/environments/household/play", json=body)
    assert answer.status_code == 503
    assert "bridge" in answer.json()["detail"]
    dream = await platform.rest.post("/v1/environments/household/play", json={"instruction": "x"})
    assert (dream.status_code, dream.json()["code"]) == (404, "model_missing")


# The edge


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
