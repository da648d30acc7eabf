"""What the trainer asks of the gateway."""

from __future__ import annotations

import io
import tarfile

import grpc
import pytest

from dreamgym.core.errors import ConflictError, ModelMissingError
from dreamgym.gateway.ids import new_id
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.inference.model_store import ModelStore
from dreamgym.v1 import jobs_pb2 as pb
from dreamgym.v1.jobs_pb2_grpc import JobsStub
from support.gateway import Platform, call

pytestmark = pytest.mark.integration


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
