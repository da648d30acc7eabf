"""The gateway's problem documents as the platform's own exceptions (`dreamgym.core.errors`).

Every exception carries `code`, `message` and `remedy`. A code that this version does not know becomes the nearest class
of its HTTP status, with the gateway's words kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from dreamgym.core.errors import (
    BY_CODE,
    CapacityError,
    ConflictError,
    DreamGymError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)

_BY_STATUS: dict[int, type[DreamGymError]] = {
    400: InvalidInputError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidInputError,
    415: InvalidInputError,
    422: InvalidInputError,
    429: CapacityError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


class UnreachableError(UnavailableError):
    """Nothing answers at the gateway's address, or the connection broke and could not be made again."""


class ProtocolError(DreamGymError):
    """What answered is not a DreamGym gateway, or speaks another version."""

    code = "protocol"


def error_from_response(response: httpx.Response) -> DreamGymError:
    """The exception that an error response stands for; its body must have been read."""
    problem = _document(response)
    code = str(problem.get("code") or str(problem.get("type", "")).rpartition("/")[2])
    kind = BY_CODE.get(code) or _BY_STATUS.get(response.status_code, DreamGymError)
    message = problem.get("detail") or problem.get("title") or _what(response)
    return kind(str(message), remedy=str(problem.get("remedy") or ""))


def unreachable(base_url: str, error: Exception) -> UnreachableError:
    """The exception for a connection that cannot be made."""
    return UnreachableError(
        f"The gateway at {base_url} does not answer ({type(error).__name__}: {error}).",
        remedy="Start the platform with `dreamgym up`, or give its address with --url or DREAMGYM_URL.",
    )


def _document(response: httpx.Response) -> Mapping[str, Any]:
    try:
        document = json.loads(response.content)
    except ValueError:
        return {}
    return document if isinstance(document, Mapping) else {}


def _what(response: httpx.Response) -> str:
    return f"{response.request.method} {response.request.url.path} was answered with status {response.status_code}."
