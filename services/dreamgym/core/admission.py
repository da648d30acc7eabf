"""What an environment's replay store takes of dreams, and what retrieval shows of them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class AdmissionPolicy(BaseModel):
    """`real_only`: dreams are played and forgotten. `enrich`: those that hold up are stored and may ground later dreams."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Literal["real_only", "enrich"] = "real_only"
    minimum_confidence: float = Field(
        0.5, ge=0, le=1, description="An episode with a step of which the experience model was less sure is not stored."
    )
    dream_transitions_max: int = Field(100_000, ge=0, description="Most dream transitions that are kept; 0: no limit.")
    dream_share_cap: float = Field(
        0.5, ge=0, le=1, description="Largest share of dream transitions among those retrieved for a step."
    )

    @property
    def retrieved_share(self) -> float:
        """The share of dreams that retrieval may show."""
        return self.dream_share_cap if self.policy == "enrich" else 0.0
