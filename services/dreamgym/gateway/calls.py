"""Calls to the other services, with typed errors."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc

from dreamgym.core.errors import DreamGymError
from dreamgym.wire.errors import error_from_rpc

T = TypeVar("T")


async def answered(call: Awaitable[T], *, service: str) -> T:
    """What a call answers. Raises the typed error of one that failed."""
    try:
        return await call
    except grpc.RpcError as error:
        raise error_from_rpc(error, service=service) from error


async def error_of_call(call: Any, *, service: str) -> DreamGymError:
    """The typed error of a call that is over; a service that went away becomes UnavailableError."""
    status, details = await call.code(), await call.details()
    if status is grpc.StatusCode.OK:
        return DreamGymError(f"The {service} service ended the call early.", remedy="Repeat it; see the service's log.")
    ended = grpc.aio.AioRpcError(
        status,
        await call.initial_metadata(),
        await call.trailing_metadata(),
        details=details or None,
        debug_error_string=None,
    )
    return error_from_rpc(ended, service=service)
