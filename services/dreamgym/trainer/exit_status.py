"""How a training process ends, as its supervisor reads it. No torch here: the supervisor must not hold its threads."""

from __future__ import annotations

ENDED = 0
"""The attempt ended, whatever the outcome."""
HELD_ELSEWHERE = 3
"""Another attempt holds the job."""
NO_GATEWAY = 4
"""The gateway is away."""
