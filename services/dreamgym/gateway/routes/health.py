"""`/healthz`, `/readyz` and `/metrics`: for probes and scrapers, without a key and without customers' data."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dreamgym.gateway.access import State

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def ready(state: State) -> dict[str, str]:
    """The process can serve: its database answers."""
    await state.database.ping()
    return {"status": "ready"}


@router.get("/metrics", response_class=Response)
async def metrics() -> Response:
    """Prometheus metrics."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
