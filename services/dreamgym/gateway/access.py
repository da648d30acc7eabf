"""Who may call a route: dependencies that read the key and check its scope."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from dreamgym.core.errors import PermissionDeniedError, UnauthenticatedError
from dreamgym.gateway.keys import Principal, authenticate
from dreamgym.gateway.state import GatewayState

_header = APIKeyHeader(name="X-API-Key", auto_error=False)
_bearer = HTTPBearer(auto_error=False)


def gateway_state(request: Request) -> GatewayState:
    """What the process shares."""
    state: GatewayState = request.app.state.gateway
    return state


State = Annotated[GatewayState, Depends(gateway_state)]


async def _principal(
    state: State,
    key: Annotated[str | None, Depends(_header)],
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Principal:
    secret = key or (bearer.credentials if bearer else "")
    if not secret:
        raise UnauthenticatedError(
            "This call carries no API key.", remedy="Send it as `X-API-Key: ...` or `Authorization: Bearer ...`."
        )
    return await authenticate(state.database, secret)


def _scoped(scope: str) -> Callable[[Principal], Awaitable[Principal]]:
    async def check(principal: Annotated[Principal, Depends(_principal)]) -> Principal:
        if not principal.may(scope):
            raise PermissionDeniedError(
                f"This key has the scopes {', '.join(sorted(principal.scopes))}; the call needs {scope}.",
                remedy=f"Use a key with the scope {scope}.",
            )
        return principal

    return check


Reader = Annotated[Principal, Depends(_scoped("read"))]
Writer = Annotated[Principal, Depends(_scoped("write"))]
Admin = Annotated[Principal, Depends(_scoped("admin"))]
