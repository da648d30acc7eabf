"""The life of a job, for customers and for workers."""

from __future__ import annotations

import asyncio
import socket

import pytest
import redis
from sqlalchemy import func, select

from dreamgym.core.errors import ConflictError, LeaseLostError
from dreamgym.embedded.ports import choose_port
from dreamgym.gateway.database import Database
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.tables import Job, JobEvent
from dreamgym.v1 import jobs_pb2 as pb
from support.gateway import Platform, call, eventually, platform_with

pytestmark = pytest.mark.integration


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
    async with platform.gateway.state.database.transaction() as session:  # as a release without this field stored it
        job = await session.get_one(Job, answers[0].json()["id"])
        job.spec = {
            **job.spec,
            "stages": [{k: v for k, v in s.items() if k != "horizon_steps"} for s in job.spec["stages"]],
        }
    later = await platform.rest.post("/v1/jobs", json=spec, headers=headers)
    assert (later.status_code, later.json()["id"]) == (202, answers[0].json()["id"])
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


async def test_a_gateway_that_stops_while_it_sends_writes_down_what_came_of_it(settings: GatewaySettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and never answers
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        hanging = settings.model_copy(update={"broker_url": url, "broker_timeout_s": 1.0})
        async with platform_with(hanging) as platform:
            await platform.environment()
            job = await platform.job()
            assert (await platform.read(job))["dispatch_error"] == ""
    async with platform_with(settings) as recovered, recovered.gateway.state.database.transaction() as session:
        row = await session.get_one(Job, job["id"])
        now = await session.scalar(select(func.now()))
        assert "imeout" in row.dispatch_error
        assert row.dispatch_due_at is not None
        assert now is not None
        assert (row.dispatch_due_at - now).total_seconds() < settings.redispatch_after_s / 2


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
