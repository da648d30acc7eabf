"""Is a service ready? One probe per kind of health check, each bounded in time."""

import asyncio
import http.client
import inspect
import socket
from collections.abc import Awaitable, Callable
from typing import Literal
from urllib.parse import urlsplit

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Check = Callable[[], "bool | Awaitable[bool]"]
"""A function, plain or async, that says whether the service is ready; raising means that it is not."""
Health = Check | tuple[Literal["grpc", "http", "tcp"], str]
"""A check, or ("grpc", "host:port"), ("http", url), ("tcp", "host:port")."""


def probe(health: Health, timeout_s: float = 1.0) -> str | None:
    """None when the service is ready, else the reason why it is not."""
    try:
        if callable(health):
            return _called(health, timeout_s)
        kind, address = health
        if kind == "grpc":
            return _grpc(address, timeout_s)
        if kind == "http":
            return _http(address, timeout_s)
        with socket.create_connection(_host_and_port(address), timeout_s):
            return None
    except grpc.RpcError as error:
        return f"gRPC health says {error.code().name}" if isinstance(error, grpc.Call) else str(error)
    except Exception as error:  # whatever a check raises is its answer
        return f"{type(error).__name__}: {error}"


def _called(check: Check, timeout_s: float) -> str | None:
    answer = check()
    if inspect.isawaitable(answer):
        answer = asyncio.run(_within(answer, timeout_s))
    return None if answer else "its check says no"


async def _within(answer: Awaitable[bool], timeout_s: float) -> bool:
    return await asyncio.wait_for(answer, timeout_s)


def _grpc(address: str, timeout_s: float) -> str | None:
    # A subchannel pool of its own: the shared one would remember earlier refusals and back off.
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"gRPC health says {health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)}"


def _http(url: str, timeout_s: float) -> str | None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", parts.path or "/")
        status = connection.getresponse().status
    finally:
        connection.close()
    return None if 200 <= status < 300 else f"HTTP {status}"


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
