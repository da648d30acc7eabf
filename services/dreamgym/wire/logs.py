"""JSON logs on stderr, one object a line, with the ids of the work in hand (job, episode, tenant)."""

from __future__ import annotations

import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

import orjson

context: ContextVar[dict[str, str]] = ContextVar("log_context", default={})  # noqa: B039 - never mutated, only replaced
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self.service,
            "logger": record.name,
            "message": record.getMessage(),
            **context.get(),
            **{key: value for key, value in vars(record).items() if key not in _STANDARD},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logs(service: str, level: str = "INFO") -> None:
    """Send every log record of this process to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


class bound:  # noqa: N801 - used like a function: `with bound(job=...)`
    """Context manager that adds ids to every log line of the current task."""

    def __init__(self, **ids: str) -> None:
        self.ids = ids

    def __enter__(self) -> None:
        self.token = context.set({**context.get(), **self.ids})

    def __exit__(self, *_: object) -> None:
        context.reset(self.token)
