"""The dashboard in a real headless Chromium, over WebDriver's own HTTP protocol."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from dreamgym.embedded.ports import choose_port
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.keys import create_key
from dreamgym.gateway.server import RunningGateway, running_gateway
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.tables import Tenant
from dreamgym.v1 import jobs_pb2 as pb
from dreamgym.v1.jobs_pb2_grpc import JobsStub
from dreamgym.wire.channel import open_channel

DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not (DRIVER and BROWSER), reason="needs chromium and chromedriver"),
]
EVALUATION = (
    '{"label": "warm start", "dream": {"value": 0.5, "low": 0.3, "high": 0.7, "n": 20},'
    ' "real": {"value": 0.25, "low": 0.11, "high": 0.47, "n": 20}, "real_transitions": 180}'
)


class Browser:
    """One window."""

    def __init__(self, driver: httpx.AsyncClient, session: str) -> None:
        self.driver = driver
        self.session = session

    async def command(self, path: str, **body: Any) -> Any:
        answer = await self.driver.post(f"/session/{self.session}/{path}", json=body)
        answer.raise_for_status()
        return answer.json()["value"]

    async def run(self, script: str, *arguments: Any) -> Any:
        return await self.command("execute/sync", script=script, args=list(arguments))

    async def text(self) -> str:
        return str(await self.run("return document.body.innerText"))

    async def click(self, name: str) -> None:
        script = "[...document.querySelectorAll('a, button')].find(e => e.textContent === arguments[0]).click()"
        await self.run(script, name)

    async def complaints(self) -> list[str]:
        """What the browser logged as wrong: faults of scripts, violations of the content policy."""
        entries = await self.command("se/log", type="browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


async def eventually(check: Callable[[], Awaitable[Any]], timeout_s: float = 20.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := await check()):
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.1)
    return found


@pytest.fixture
async def gateway(database_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    settings = GatewaySettings(
        database_url=database_url,
        broker_url=f"redis://127.0.0.1:{choose_port()}/0",
        service_token=SecretStr("integration-token"),
        object_store=tmp_path / "objects",
        state_dir=tmp_path / "state",
        gateway_port=0,
        jobs_address="127.0.0.1:0",
        lease_ttl_s=60.0,
        feed_poll_s=0.1,
        drain_s=1.0,
    )
    async with running_gateway(settings) as gateway:
        yield gateway


@pytest.fixture
async def key(gateway: RunningGateway) -> str:
    tenant = new_id("ten")
    async with gateway.state.database.transaction() as session:
        session.add(Tenant(id=tenant, name=tenant))
    _, secret = await create_key(gateway.state.database, tenant, name="test", scopes=["admin"], expires_at=None)
    return secret


@pytest.fixture
async def rest(gateway: RunningGateway, key: str) -> AsyncIterator[httpx.AsyncClient]:
    base_url = f"http://127.0.0.1:{gateway.http_port}"
    async with httpx.AsyncClient(base_url=base_url, headers={"X-API-Key": key}, timeout=30) as rest:
        yield rest


@pytest.fixture
async def jobs(gateway: RunningGateway) -> AsyncIterator[Any]:
    channel = open_channel(f"127.0.0.1:{gateway.jobs_port}", gateway.state.settings)
    yield JobsStub(channel)
    await channel.close(None)


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    port = choose_port()
    process = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL)
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=390,844"]
    options = {"binary": BROWSER, "args": [*arguments, f"--user-data-dir={tmp_path / 'profile'}"]}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as driver:

            async def ready() -> bool:
                try:
                    return bool((await driver.get("/status")).json()["value"]["ready"])
                except httpx.TransportError:
                    return False

            await eventually(ready)
            answer = await driver.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            browser = Browser(driver, answer.json()["value"]["sessionId"])
            yield browser
            await driver.delete(f"/session/{browser.session}")
    finally:
        process.terminate()
        process.wait(10)


async def signed_in(browser: Browser, gateway: RunningGateway, key: str) -> None:
    await browser.command("url", url=f"http://127.0.0.1:{gateway.http_port}/")
    await shows(browser, "Enter your API key")
    typing = "document.getElementById('key').value = arguments[0]; document.querySelector('form').requestSubmit()"
    await browser.run(typing, key)


async def shows(browser: Browser, *texts: str) -> None:
    async def check() -> bool:
        shown = await browser.text()
        return all(text in shown for text in texts)

    await eventually(check)


async def test_a_wrong_key_is_refused_with_its_remedy(gateway: RunningGateway, browser: Browser) -> None:
    await signed_in(browser, gateway, "dgk_wrong")
    await shows(browser, "The API key is not known.", "ask an admin")


async def test_a_job_is_watched_live_and_cancelled(
    gateway: RunningGateway, key: str, rest: httpx.AsyncClient, jobs: Any, browser: Browser
) -> None:
    await rest.post("/v1/environments", json={"name": "household", "adapter": "alfworld"})
    stages = [{"kind": "evaluate", "label": "warm start"}, {"kind": "train_policy"}]
    spec = {"kind": "pipeline", "environment": "household", "name": "my <b>run</b>", "stages": stages}
    job = (await rest.post("/v1/jobs", json=spec)).json()["id"]
    await jobs.Lease(pb.LeaseRequest(job_id=job, worker="w"))
    await signed_in(browser, gateway, key)
    await shows(browser, "my <b>run</b>", "0 of 2")
    await browser.click("my <b>run</b>")
    await shows(browser, "Evaluate: warm start", "running", "job.created")

    await jobs.StartStage(pb.StartStageRequest(job_id=job, attempt=1, stage=0))
    finished = pb.FinishStageRequest(job_id=job, attempt=1, stage=0, state="succeeded", result=EVALUATION)
    await jobs.FinishStage(finished)
    await jobs.StartStage(pb.StartStageRequest(job_id=job, attempt=1, stage=1))
    points = [
        pb.MetricPoint(stage=1, name=name, step=step, value=step / 10)
        for step in range(5)
        for name in ("dream_success", "kl", "something_new")
    ]
    await jobs.Heartbeat(pb.HeartbeatRequest(job_id=job, attempt=1, metrics=points))
    await shows(browser, "50 %", "25 %", "[11, 47] % n = 20", "KL to the reference policy (nats)", "More curves")
    assert await browser.run("return document.querySelectorAll('svg.chart path.curve').length") >= 2
    assert await browser.run("return document.documentElement.scrollWidth <= window.innerWidth")

    await browser.click("Cancel")
    await browser.click("Really cancel?")
    await shows(browser, "cancelling")
    await jobs.Finish(pb.FinishRequest(job_id=job, attempt=1, state="cancelled"))
    await shows(browser, "running → cancelling", "cancelling → cancelled")
    assert await browser.complaints() == []


async def test_an_error_is_shown_with_its_remedy_and_the_job_can_be_retried(
    gateway: RunningGateway, key: str, rest: httpx.AsyncClient, jobs: Any, browser: Browser
) -> None:
    await rest.post("/v1/environments", json={"name": "household", "adapter": "alfworld"})
    job = (await rest.post("/v1/jobs", json={"kind": "pipeline", "environment": "household"})).json()["id"]
    await jobs.Lease(pb.LeaseRequest(job_id=job, worker="w"))
    failed = pb.FinishRequest(
        job_id=job,
        attempt=1,
        state="failed",
        error_code="storage_full",
        error_message="No room.",
        error_remedy="Make room.",
    )
    await jobs.Finish(failed)
    await signed_in(browser, gateway, key)
    await shows(browser, "pipeline")
    await browser.click("pipeline")
    await shows(browser, "No room.", "Make room.")
    await browser.click("Retry from the failed stage")
    await shows(browser, "queued", "failed → queued")
    assert await browser.complaints() == []
