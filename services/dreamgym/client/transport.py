"""Requests to the gateway: authentication, retries that cannot do a thing twice, errors as exceptions."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from dreamgym.client.errors import ProtocolError, error_from_response, unreachable

IDEMPOTENCY_KEY = "Idempotency-Key"
Content = Callable[[], Iterator[bytes]]
"""Opens a request body from its beginning; a retry opens it again."""
_RETRIED_STATUS = frozenset({429, 502, 503, 504})
_MAX_RETRY_AFTER_S = 60.0
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Retries:
    """How often and how long to try again. Delays double from `first_delay_s`, with jitter, up to `max_delay_s`."""

    attempts: int = 4
    first_delay_s: float = 0.25
    max_delay_s: float = 8.0

    def delay_s(self, attempt: int, response: httpx.Response | None = None) -> float:
        """Seconds before the attempt after `attempt` (counted from 0); the server's Retry-After wins."""
        if response is not None:
            asked = response.headers.get("retry-after", "")
            if asked.isdigit():
                return min(float(asked), _MAX_RETRY_AFTER_S)
        return min(self.max_delay_s, self.first_delay_s * 2.0**attempt) * random.uniform(0.5, 1.0)


class Transport:
    """One connection pool to one gateway, under one key.

    Every POST carries an Idempotency-Key, the same one in each retry, so that a request whose answer was lost is not done
    twice. GET, PUT and DELETE are idempotent by themselves.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout_s: float = 60.0,
        retries: Retries = Retries(),
        http: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.retries = retries
        self._client = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
            transport=http,
            trust_env=httpx.URL(base_url).host not in _LOOPBACK,  # a proxy does not lead to this machine
        )

    def close(self) -> None:
        self._client.close()

    @property
    def is_closed(self) -> bool:
        return self._client.is_closed

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        content: Content | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        retried: bool = True,
    ) -> httpx.Response:
        """Send a request and return its read response; raise a DreamGymError for every status from 400 up.

        `retried` is False for what must happen at most once although it has no key, such as a step of an episode.
        """
        sent = dict(headers or {})
        if method == "POST":
            sent[IDEMPOTENCY_KEY] = idempotency_key or str(uuid.uuid4())
        options: dict[str, Any] = {} if timeout_s is None else {"timeout": timeout_s}
        attempts = self.retries.attempts if retried else 1
        for attempt in range(attempts):
            last = attempt == attempts - 1
            try:
                response = self._client.request(
                    method,
                    path,
                    json=json,
                    params=_given(params),
                    content=content() if content else None,
                    headers=sent,
                    **options,
                )
            except httpx.TransportError as error:
                if last or isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
                    raise unreachable(self.base_url, error) from error
                time.sleep(self.retries.delay_s(attempt))
                continue
            if response.status_code in _RETRIED_STATUS and not last:
                time.sleep(self.retries.delay_s(attempt, response))
                continue
            if response.status_code >= 400:
                raise error_from_response(response)
            return response
        raise AssertionError("the last attempt returns or raises")

    def json(self, method: str, path: str, **options: Any) -> Any:
        """The decoded JSON body of a response."""
        response = self.request(method, path, **options)
        try:
            return response.json()
        except ValueError as error:
            raise ProtocolError(
                f"{self.base_url}{path} did not answer with JSON.",
                remedy="Check that the address is that of a DreamGym gateway, without a path.",
            ) from error

    @contextmanager
    def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = 60.0
    ) -> Iterator[httpx.Response]:
        """Open a GET whose body is read bit by bit; `timeout_s` is the longest silence. Not retried here."""
        timeout = httpx.Timeout(timeout_s, connect=10.0)
        try:
            with self._client.stream("GET", path, headers=dict(headers or {}), timeout=timeout) as response:
                if response.status_code >= 400:
                    response.read()
                    raise error_from_response(response)
                yield response
        except httpx.TransportError as error:
            raise unreachable(self.base_url, error) from error


def _given(params: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value is not None}
