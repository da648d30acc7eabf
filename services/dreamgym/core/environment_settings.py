"""The settings of an environment that the services act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dreamgym.core.admission import AdmissionPolicy
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.fidelity_floor import FidelityFloor


class EnvironmentSettings(BaseModel):
    """What is stored holds only what differs from the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    admission: AdmissionPolicy = Field(AdmissionPolicy(), description="What the replay store takes of dreams.")
    fidelity_floor: FidelityFloor = Field(FidelityFloor(), description="Below it no policy is trained in the dream.")


def settings_of(stored: Mapping[str, Any] | str) -> EnvironmentSettings:
    """Read stored settings, or their JSON. Raises InvalidInputError for those that an older release took unread."""
    try:
        return EnvironmentSettings.model_validate(orjson.loads(stored or "{}") if isinstance(stored, str) else stored)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:4])
        raise InvalidInputError(
            f"The environment's settings cannot be read: {faults}.",
            remedy="Set them anew: PATCH /v1/environments/{environment}.",
        ) from error
