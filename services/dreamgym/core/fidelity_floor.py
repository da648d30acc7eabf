"""How faithful a dream must be before a policy is trained in it (METHOD section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float | None, Field(ge=0, le=1)]


class FidelityFloor(BaseModel):
    """Least values of what `measure_fidelity` finds; None asks for nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state_exact: Share = Field(None, description="Share of next states predicted exactly.")
    success_f1: Share = None
    done_f1: Share = None
    invalid_recall: Share = Field(None, description="Share of real refusals that the dream refuses too.")
    rollout_consistency: Share = Field(None, description="Share of replayed episodes with the same outcome.")

    @property
    def asks(self) -> bool:
        """Whether there is anything to measure up to."""
        return self != FidelityFloor()

    def shortfalls(self, measured: Mapping[str, Any] | None) -> list[str]:
        """What is too low or was not measured, in words; empty if the floor is met."""
        found = []
        for name, least in self.model_dump(exclude_none=True).items():
            value = (measured or {}).get(name)
            if value is None:
                found.append(f"{name} was not measured (floor {least:g})")
            elif value < least:
                found.append(f"{name} is {value:.3g} (floor {least:g})")
        return found


def summary_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The deciding numbers of a `measure_fidelity` result, as the registry keeps them."""
    rollouts = result.get("rollouts") or {}
    return {
        "state_exact": result["state_exact"]["value"],
        "success_f1": result["success"]["f1"],
        "done_f1": result["done_f1"],
        "invalid_recall": result["invalid_action"]["recall"],
        "rollout_consistency": rollouts["consistency"]["value"] if rollouts.get("n") else None,
        "transitions": result["n"],
        "replayed_episodes": rollouts.get("n", 0),
    }
