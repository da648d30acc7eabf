"""What happens to every HTTP request: an id, a size limit, security headers, counters."""

from __future__ import annotations

import re
import time
from typing import Any

from prometheus_client import Counter, Histogram
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dreamgym.gateway.ids import new_id
from dreamgym.wire.logs import bound

REQUESTS = Counter("dreamgym_http_requests_total", "Finished requests.", ["method", "route", "status"])
SECONDS = Histogram("dreamgym_http_request_seconds", "Time until the last byte, streams left out.", ["method", "route"])
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_STREAMS = ("/events", "/download")
_UPLOADS = ("/trajectories", "/tasks")
# The dashboard needs nothing but its own files; nothing inline, nothing from elsewhere.
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class RequestBoundary:
    """Plain ASGI, so that streams pass through it untouched."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.perf_counter()
        status = [500]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode()), *_HEADERS]
                message = {**message, "headers": headers}
            await send(message)

        path: str = scope["path"]
        receiving = receive if path.endswith(_UPLOADS) else self._limited(receive)
        try:
            with bound(request=request_id):
                await self.app(scope, receiving, sending)
        finally:
            route = _route(scope)
            REQUESTS.labels(scope["method"], route, str(status[0])).inc()
            if not path.endswith(_STREAMS):
                SECONDS.labels(scope["method"], route).observe(time.perf_counter() - started)

    def _limited(self, receive: Receive) -> Receive:
        size = 0

        async def receiving() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.max_body_bytes:
                raise HTTPException(413, f"The body is larger than {self.max_body_bytes} bytes.")
            return message

        return receiving


def _route(scope: Scope) -> str:
    """The route's template, never the path: ids would make a counter each."""
    route: Any = scope.get("route")
    return getattr(route, "path", None) or "other"
