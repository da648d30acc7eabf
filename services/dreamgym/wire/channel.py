"""Client channels: service token on every call, deadlines, keep-alive, transparent retry of idempotent reads.

Create channels after a fork, never before.
"""

from __future__ import annotations

from typing import Any

import grpc

from dreamgym.wire.settings import ServiceSettings

TOKEN_KEY = "x-dreamgym-token"  # noqa: S105 - the name of a header
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Bring a restarted service back within a second rather than after gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.lb_policy_name", "round_robin"),
    # A new channel makes connections of its own: one that shares them with the rest of the process would begin with the
    # failure, and the wait, of a channel whose service at the same address has gone.
    ("grpc.use_local_subchannel_pool", 1),
]


def token_metadata(settings: ServiceSettings) -> tuple[tuple[str, str], ...]:
    return ((TOKEN_KEY, settings.service_token.get_secret_value()),)


def open_channel(address: str, settings: ServiceSettings) -> grpc.aio.Channel:
    """An asyncio channel to one service that carries the service token."""
    token = token_metadata(settings)
    interceptors: list[Any] = [_UnaryUnary(token), _UnaryStream(token), _Stream(token), _Bidi(token)]
    return grpc.aio.insecure_channel(address, options=OPTIONS, interceptors=interceptors)


def _with_token(details: grpc.aio.ClientCallDetails, token: tuple[tuple[str, str], ...]) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()), *token)
    return grpc.aio.ClientCallDetails(
        method=details.method,
        timeout=details.timeout,
        metadata=metadata,
        credentials=details.credentials,
        wait_for_ready=details.wait_for_ready,
    )


class _Token:
    def __init__(self, token: tuple[tuple[str, str], ...]) -> None:
        self.token = token


class _UnaryUnary(_Token, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation, client_call_details, request):  # type: ignore[no-untyped-def]
        return await continuation(_with_token(client_call_details, self.token), request)


class _UnaryStream(_Token, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation, client_call_details, request):  # type: ignore[no-untyped-def]
        return await continuation(_with_token(client_call_details, self.token), request)


class _Stream(_Token, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation, client_call_details, request):  # type: ignore[no-untyped-def]
        return await continuation(_with_token(client_call_details, self.token), request)


class _Bidi(_Token, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation, client_call_details, request):  # type: ignore[no-untyped-def]
        return await continuation(_with_token(client_call_details, self.token), request)
