"""How every service is served: health, reflection, token, error mapping, metrics, graceful drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import Counter, start_http_server

from dreamgym.core.errors import DreamGymError, UnauthenticatedError
from dreamgym.wire.channel import OPTIONS, TOKEN_KEY
from dreamgym.wire.errors import CODE_KEY, REMEDY_KEY, sendable, status_of
from dreamgym.wire.settings import ServiceSettings

log = logging.getLogger(__name__)
CALLS = Counter("dreamgym_rpc_total", "Finished calls by method and outcome.", ["method", "code"])
_OPEN_PREFIXES = ("/grpc.health.v1.Health/", "/grpc.reflection.")


class Boundary(grpc.aio.ServerInterceptor):
    """Checks the service token and turns a `DreamGymError` into its gRPC status; counts every call."""

    def __init__(self, token: str) -> None:
        self.token = token.encode()

    async def intercept_service(self, continuation, details):  # type: ignore[no-untyped-def]
        handler = await continuation(details)
        if handler is None or details.method.startswith(_OPEN_PREFIXES):
            return handler
        given = str(dict(details.invocation_metadata).get(TOKEN_KEY, "")).encode()
        allowed = secrets.compare_digest(given, self.token)
        return _wrap(handler, details.method, allowed)


def _wrap(handler: Any, method: str, allowed: bool) -> Any:
    streams = (handler.request_streaming, handler.response_streaming)
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[streams]
    inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    async def refuse(error: BaseException, context: Any) -> None:
        if isinstance(error, DreamGymError):
            CALLS.labels(method, error.code).inc()
            message, remedy = sendable(error)
            await context.abort(status_of(error), message, ((CODE_KEY, error.code), (REMEDY_KEY, remedy.encode())))
        CALLS.labels(method, "internal").inc()
        log.exception("call failed", extra={"method": method}, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")

    async def check(context: Any) -> None:
        if not allowed:
            error = UnauthenticatedError(
                "This call carries no valid service token.",
                remedy="Give every service the same DREAMGYM_SERVICE_TOKEN.",
            )
            await refuse(error, context)

    async def unary(request: Any, context: Any) -> Any:
        await check(context)
        try:
            result = await inner(request, context)
        except asyncio.CancelledError:
            CALLS.labels(method, "cancelled").inc()
            raise
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await refuse(error, context)
            raise
        CALLS.labels(method, "ok").inc()
        return result

    async def streaming(request: Any, context: Any) -> Any:
        await check(context)
        try:
            # Closed here and now, also when the client has gone: an episode frees what it holds.
            async with contextlib.aclosing(inner(request, context)) as results:
                async for result in results:
                    yield result
        except (asyncio.CancelledError, GeneratorExit):
            CALLS.labels(method, "cancelled").inc()
            raise
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await refuse(error, context)
        else:
            CALLS.labels(method, "ok").inc()

    return make(
        streaming if handler.response_streaming else unary,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


async def start_server(
    address: str,
    settings: ServiceSettings,
    register: Sequence[Callable[[grpc.aio.Server], None]],
    service_names: Sequence[str],
) -> tuple[grpc.aio.Server, int]:
    """Start a server on `address` (port 0: any free one) and answer it with its port; health says SERVING."""
    token = settings.service_token.get_secret_value()
    if not token:
        raise SystemExit("DREAMGYM_SERVICE_TOKEN is empty: set the same secret for every service.")
    server = grpc.aio.server(options=OPTIONS, interceptors=[Boundary(token)])
    for add in register:
        add(server)
    checker: Any = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    for name in ("", *service_names):
        await checker.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    port = server.add_insecure_port(address)
    await server.start()
    if settings.metrics_port:
        start_http_server(settings.metrics_port, settings.metrics_host)
    log.info("serving", extra={"address": address, "services": list(service_names)})
    return server, port


async def serve_until_stopped(
    server: grpc.aio.Server, settings: ServiceSettings, on_stop: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Wait for SIGTERM or SIGINT, then finish the open calls within `drain_s` and stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    await stop.wait()
    log.info("draining", extra={"drain_s": settings.drain_s})
    await server.stop(settings.drain_s)
    if on_stop is not None:
        await on_stop()
