"""Maps the one error hierarchy to gRPC and back, once.

A server's method raises a `DreamGymError`; the interceptor in `wire.server` turns it into a status whose trailing
metadata carries code and remedy. The client side turns the status back into the same error.
"""

from __future__ import annotations

from typing import Any

import grpc

from dreamgym.core.episodes import TerminationReason
from dreamgym.core.errors import BY_CODE, DeadlineError, DreamGymError, UnavailableError
from dreamgym.v1 import environment_pb2 as env_pb

CODE_KEY = "x-dreamgym-code"
REMEDY_KEY = "x-dreamgym-remedy-bin"
MAX_MESSAGE_BYTES = 4500
MAX_REMEDY_BYTES = 1500
"""gRPC drops a status whose metadata exceeds 8 KiB, and with it the error: what is longer is cut."""

STATUS_OF: dict[str, grpc.StatusCode] = {
    "invalid_input": grpc.StatusCode.INVALID_ARGUMENT,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "conflict": grpc.StatusCode.FAILED_PRECONDITION,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "permission_denied": grpc.StatusCode.PERMISSION_DENIED,
    "lease_lost": grpc.StatusCode.ABORTED,
    "model_missing": grpc.StatusCode.NOT_FOUND,
    "budget_exhausted": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "capacity": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "storage_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "adapter_missing": grpc.StatusCode.FAILED_PRECONDITION,
    "fidelity_too_low": grpc.StatusCode.FAILED_PRECONDITION,
    "context_overflow": grpc.StatusCode.OUT_OF_RANGE,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "engine_failed": grpc.StatusCode.UNAVAILABLE,
    "deadline": grpc.StatusCode.DEADLINE_EXCEEDED,
}


def status_of(error: DreamGymError) -> grpc.StatusCode:
    return STATUS_OF.get(error.code, grpc.StatusCode.INTERNAL)


def sendable(error: DreamGymError) -> tuple[str, str]:
    """Message and remedy, cut so that they fit a status. Counts bytes as gRPC writes them: `%` and non-ASCII take three."""
    return _cut(error.message, MAX_MESSAGE_BYTES), _cut(error.remedy, MAX_REMEDY_BYTES)


def _cut(text: str, limit: int) -> str:
    size = 0
    for place, character in enumerate(text):
        size += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode())
        if size > limit:
            return text[:place] + "..."
    return text


def error_from_rpc(error: grpc.RpcError, *, service: str) -> DreamGymError:
    """The typed error behind a failed call; a dead service becomes UnavailableError naming it."""
    call = error if isinstance(error, grpc.aio.AioRpcError | grpc.Call) else None
    if call is None:
        return UnavailableError(f"The {service} service failed: {error}.", remedy="See its log.")
    metadata: Any = call.trailing_metadata() or ()
    trailing = dict(metadata)
    details = call.details() or ""
    code = trailing.get(CODE_KEY)
    if code in BY_CODE:
        remedy = trailing.get(REMEDY_KEY, b"")
        return BY_CODE[code](details, remedy=remedy.decode() if isinstance(remedy, bytes) else str(remedy))
    if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"The {service} service did not answer in time: {details}.", remedy="Retry; see its log.")
    if call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return UnavailableError(
            f"The {service} service does not answer ({details or call.code().name}).",
            remedy="Is it running? `dreamgym doctor` and its log say why; the supervisor restarts it.",
        )
    return DreamGymError(f"The {service} service failed: {details or call.code().name}.", remedy="See its log.")


def failure_message(error: DreamGymError, termination: TerminationReason | None = None) -> env_pb.Failure:
    """A `Failure` of an episode's stream."""
    from dreamgym.wire.convert import termination_to_proto

    reason = termination or {
        "budget_exhausted": TerminationReason.BUDGET,
        "context_overflow": TerminationReason.CONTEXT_OVERFLOW,
    }.get(error.code, TerminationReason.INFRASTRUCTURE)
    return env_pb.Failure(
        code=error.code,
        message=error.message,
        remedy=error.remedy,
        retryable=error.retryable,
        termination=termination_to_proto(reason),
    )


def error_from_failure(failure: env_pb.Failure) -> DreamGymError:
    cls = BY_CODE.get(failure.code, DreamGymError)
    return cls(failure.message, remedy=failure.remedy)
