"""`/v1/keys`."""

from __future__ import annotations

from fastapi import APIRouter, Response

from dreamgym.gateway import keys
from dreamgym.gateway.access import Admin, State
from dreamgym.gateway.schemas import Key, KeyInput, KeyPage, NewKey

router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.post("", status_code=201)
async def create_key(body: KeyInput, admin: Admin, state: State) -> NewKey:
    """Make a key. It is shown in this answer only."""
    row, secret = await keys.create_key(
        state.database, admin.tenant_id, name=body.name, scopes=list(body.scopes), expires_at=body.expires_at
    )
    return NewKey(**Key.model_validate(row).model_dump(), key=secret)


@router.get("")
async def list_keys(admin: Admin, state: State) -> KeyPage:
    """All keys of the tenant, without their secrets."""
    return KeyPage(items=[Key.model_validate(row) for row in await keys.list_keys(state.database, admin.tenant_id)])


@router.delete("/{key_id}", status_code=204)
async def delete_key(key_id: str, admin: Admin, state: State) -> Response:
    """Revoke a key at once."""
    await keys.delete_key(state.database, admin, key_id)
    return Response(status_code=204)
