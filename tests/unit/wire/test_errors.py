"""Errors, tokens and streams over a real server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from pydantic import SecretStr

from dreamgym.core.episodes import TerminationReason
from dreamgym.core.errors import (
    BY_CODE,
    AdapterError,
    BudgetExhaustedError,
    ContextOverflowError,
    DeadlineError,
    DreamGymError,
    InvalidInputError,
    UnauthenticatedError,
    UnavailableError,
)
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.v1 import environment_pb2_grpc
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import termination_from_proto
from dreamgym.wire.errors import STATUS_OF, error_from_failure, error_from_rpc, failure_message
from dreamgym.wire.server import start_server
from dreamgym.wire.settings import ServiceSettings

SETTINGS = ServiceSettings(service_token=SecretStr("right"))


class Faulty(environment_pb2_grpc.EnvironmentServicer):
    """Raises whatever the test hands it, from unary and streaming calls alike."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.EnvironmentInfo:  # noqa: N802
        if self.error:
            raise self.error
        return pb.EnvironmentInfo(environment_id=request.environment_id)

    async def Play(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.PlayResponse]:  # noqa: N802
        async for _ in request_iterator:
            yield pb.PlayResponse(observation=pb.Observation(state="here"))
            if self.error:
                raise self.error


@pytest.fixture
async def faulty() -> AsyncIterator[tuple[Faulty, str]]:
    servicer = Faulty()
    add: Any = environment_pb2_grpc.add_EnvironmentServicer_to_server
    server, port = await start_server(
        "127.0.0.1:0", SETTINGS, [lambda s: add(servicer, s)], ["dreamgym.v1.Environment"]
    )
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


async def describe(address: str, settings: ServiceSettings = SETTINGS) -> pb.EnvironmentInfo:
    channel = open_channel(address, settings)
    stub: Any = environment_pb2_grpc.EnvironmentStub(channel)
    try:
        info: pb.EnvironmentInfo = await stub.Describe(pb.DescribeRequest(environment_id="e"), timeout=10)
        return info
    finally:
        await channel.close(None)


async def play(address: str, settings: ServiceSettings = SETTINGS) -> list[Any]:
    channel = open_channel(address, settings)
    stub: Any = environment_pb2_grpc.EnvironmentStub(channel)
    stream = stub.Play(timeout=10)
    try:
        await stream.write(pb.PlayRequest(reset=pb.Reset()))
        return [await stream.read(), await stream.read()]
    finally:
        stream.cancel()
        await channel.close(None)


async def refusal(call: Awaitable[Any]) -> DreamGymError:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return error_from_rpc(caught.value, service="environment")


def test_every_error_has_a_code_of_its_own_and_a_status() -> None:
    codes = [cls.code for cls in BY_CODE.values()]
    assert len(set(codes)) == len(codes)
    assert set(STATUS_OF) <= set(codes)


async def test_a_new_channel_does_not_inherit_the_failure_of_an_old_one() -> None:
    servicer = Faulty()
    add: Any = environment_pb2_grpc.add_EnvironmentServicer_to_server
    server, port = await start_server("127.0.0.1:0", SETTINGS, [lambda s: add(servicer, s)], [])
    address = f"127.0.0.1:{port}"
    old = open_channel(address, SETTINGS)
    stub: Any = environment_pb2_grpc.EnvironmentStub(old)
    servicer.error = InvalidInputError("First.")
    assert isinstance(await refusal(stub.Describe(pb.DescribeRequest(), timeout=10)), InvalidInputError)
    await server.stop(None)
    assert isinstance(await refusal(stub.Describe(pb.DescribeRequest(), timeout=10)), UnavailableError)
    server, _ = await start_server(address, SETTINGS, [lambda s: add(servicer, s)], [])
    assert isinstance(await refusal(describe(address)), InvalidInputError)
    await old.close(None)
    await server.stop(None)


@pytest.mark.parametrize("way", [describe, play])
@pytest.mark.parametrize("cls", BY_CODE.values(), ids=list(BY_CODE))
async def test_an_error_crosses_the_wire_as_itself(
    faulty: tuple[Faulty, str], cls: type[DreamGymError], way: Callable[[str], Awaitable[Any]]
) -> None:
    servicer, address = faulty
    servicer.error = cls("Nothing grows – here.\nNot even näxt year.", remedy="Water it: 水.")
    error = await refusal(way(address))
    assert type(error) is cls
    assert (error.message, error.remedy) == (servicer.error.message, servicer.error.remedy)


@pytest.mark.parametrize("way", [describe, play])
async def test_a_very_long_message_still_arrives_as_its_error(
    faulty: tuple[Faulty, str], way: Callable[[str], Awaitable[Any]]
) -> None:
    servicer, address = faulty
    servicer.error = InvalidInputError("Line 7 is wrong: " + "x" * 100_000, remedy="Shorten it. " + "y" * 100_000)
    error = await refusal(way(address))
    assert type(error) is InvalidInputError
    assert error.message.startswith("Line 7 is wrong")
    assert error.remedy.startswith("Shorten it.")


@pytest.mark.parametrize("way", [describe, play])
async def test_an_unforeseen_error_is_internal_and_names_the_service(
    faulty: tuple[Faulty, str], way: Callable[[str], Awaitable[Any]]
) -> None:
    servicer, address = faulty
    servicer.error = KeyError("shelf")
    error = await refusal(way(address))
    assert type(error) is DreamGymError
    assert "environment service" in error.message
    assert "KeyError" in error.message


@pytest.mark.parametrize("token", ["wrong", "", "right "])
@pytest.mark.parametrize("way", [describe, play])
async def test_a_wrong_token_is_refused_before_the_method_runs(
    faulty: tuple[Faulty, str], token: str, way: Callable[[str, ServiceSettings], Awaitable[Any]]
) -> None:
    servicer, address = faulty
    servicer.error = AssertionError("the method ran")
    error = await refusal(way(address, ServiceSettings(service_token=SecretStr(token))))
    assert type(error) is UnauthenticatedError
    assert error.remedy


async def test_the_right_token_is_let_through(faulty: tuple[Faulty, str]) -> None:
    assert (await describe(faulty[1])).environment_id == "e"


async def test_a_service_that_is_away_is_unavailable_by_name(unused_tcp_port: int) -> None:
    error = await refusal(describe(f"127.0.0.1:{unused_tcp_port}"))
    assert type(error) is UnavailableError
    assert "environment service" in error.message
    assert error.retryable


async def test_a_call_past_its_deadline_is_a_deadline_error(faulty: tuple[Faulty, str]) -> None:
    channel = open_channel(faulty[1], SETTINGS)
    stub: Any = environment_pb2_grpc.EnvironmentStub(channel)
    stream = stub.Play(timeout=0.05)
    assert type(await refusal(stream.read())) is DeadlineError
    await channel.close(None)


async def test_a_server_without_a_token_does_not_start() -> None:
    with pytest.raises(SystemExit, match="DREAMGYM_SERVICE_TOKEN is empty"):
        await start_server("127.0.0.1:0", ServiceSettings(service_token=SecretStr("")), [], [])


@pytest.mark.parametrize("cls", BY_CODE.values(), ids=list(BY_CODE))
def test_a_failure_of_a_stream_gives_back_its_error(cls: type[DreamGymError]) -> None:
    failure = pb.Failure.FromString(failure_message(cls("What.", remedy="Do.")).SerializeToString())
    error = error_from_failure(failure)
    assert type(error) is cls
    assert (error.message, error.remedy, failure.retryable) == ("What.", "Do.", cls.retryable)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BudgetExhaustedError("b"), TerminationReason.BUDGET),
        (ContextOverflowError("c"), TerminationReason.CONTEXT_OVERFLOW),
        (AdapterError("a"), TerminationReason.INFRASTRUCTURE),
        (DreamGymError("d"), TerminationReason.INFRASTRUCTURE),
    ],
)
def test_a_failure_says_why_the_episode_ended(error: DreamGymError, reason: TerminationReason) -> None:
    assert termination_from_proto(failure_message(error).termination) is reason
    told = failure_message(error, TerminationReason.CANCELLED)
    assert termination_from_proto(told.termination) is TerminationReason.CANCELLED


def test_a_failure_of_a_newer_server_is_still_an_error() -> None:
    assert type(error_from_failure(pb.Failure(code="not_invented_yet", message="m"))) is DreamGymError
