"""`/v1/models`: the registry and the files."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from dreamgym.gateway import models
from dreamgym.gateway.access import Reader, State
from dreamgym.gateway.archive import Archive
from dreamgym.gateway.pages import Cursor, Limit, decode_cursor, encode_cursor
from dreamgym.gateway.schemas import Model, ModelPage

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("")
async def list_models(
    reader: Reader,
    state: State,
    environment: Annotated[str | None, Query(description="Name or id.")] = None,
    role: Annotated[Literal["policy", "experience"] | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ModelPage:
    """The newest models first."""
    rows = await models.list_models(
        state.database,
        reader.tenant_id,
        environment=environment,
        role=role,
        before=decode_cursor("models", cursor),
        limit=limit,
    )
    more = encode_cursor("models", rows[-1].id) if len(rows) == limit else None
    return ModelPage(items=[Model.model_validate(row) for row in rows], next_cursor=more)


@router.get("/{model}")
async def get_model(model: str, reader: Reader, state: State) -> Model:
    """One model by id or version."""
    return Model.model_validate(await models.get_model(state.database, reader.tenant_id, model))


@router.get("/{model}/download", response_class=StreamingResponse)
async def download_model(model: str, reader: Reader, state: State) -> StreamingResponse:
    """The model's folder as a tar file."""
    row = await models.get_model(state.database, reader.tenant_id, model)
    published = await asyncio.to_thread(state.models.published, row.location)
    archive = await asyncio.to_thread(Archive.of, published.path, row.version.replace("/", "-"))
    headers = {
        "Content-Length": str(archive.size_bytes),
        "Content-Disposition": f'attachment; filename="{archive.name}.tar"',
        "ETag": f'"{published.sha256}"',
    }
    return StreamingResponse(archive.chunks(), media_type="application/x-tar", headers=headers)
