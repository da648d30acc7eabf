"""The REST application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic.json_schema import models_json_schema

import dreamgym
from dreamgym.gateway.problems import MEDIA_TYPE, Problem, install_problem_handlers
from dreamgym.gateway.requests import RequestBoundary
from dreamgym.gateway.routes import environments, health, jobs, keys, models, play
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.state import GatewayState, open_state

STATIC = Path(__file__).parent / "static"
_PROBLEM: dict[str, Any] = {
    "model": Problem,
    "description": "Problem details (RFC 9457).",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_OF_EVERY_ROUTE: dict[int | str, dict[str, Any]] = {
    status: _PROBLEM for status in (400, 401, 403, 404, 409, 413, 422, 429, 500, 503)
}


def create_app(settings: GatewaySettings, state: GatewayState | None = None) -> FastAPI:
    """The application. Without `state` it opens and closes its own, so that any ASGI server can run it alone."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if state is not None:
            yield
            return
        async with open_state(settings) as opened:
            app.state.gateway = opened
            yield

    app = FastAPI(
        title="DreamGym",
        version=dreamgym.__version__,
        summary="Train LLM agents on synthesized experience.",
        lifespan=lifespan,
        # Their pages load scripts from elsewhere; /openapi.json is there for any viewer.
        docs_url=None,
        redoc_url=None,
    )
    if state is not None:
        app.state.gateway = state
    install_problem_handlers(app)
    for module in (environments, jobs, models, play, keys):
        app.include_router(module.router, responses=_OF_EVERY_ROUTE)
    app.include_router(health.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/", include_in_schema=False)
    async def dashboard() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    _describe_uploads(app)
    app.add_middleware(RequestBoundary, max_body_bytes=settings.max_body_bytes)
    return app


def _describe_uploads(app: FastAPI) -> None:
    """Add the lines of streamed uploads to the OpenAPI document, which FastAPI does not parse and so does not know."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        models = [(model, "validation") for model in environments.UPLOADED]
        _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        document["components"]["schemas"].update(schemas["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]
