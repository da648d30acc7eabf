"""Settings of the curriculum service."""

from __future__ import annotations

from pydantic import Field

from dreamgym.wire.settings import ServiceSettings


class CurriculumSettings(ServiceSettings):
    """Its database pool, and how it asks for variations."""

    curriculum_pool_size: int = Field(8, ge=1)
    curriculum_statement_deadline_s: float = Field(10.0, gt=0)
    generation_deadline_s: float = Field(20.0, gt=0)
    """Deadline of asking the experience service for variations; a report must answer within its own deadline."""
    generation_seeds: int = Field(4, ge=1)
    """Tasks of highest variance that seed the generator after an iteration."""
