"""Settings of trainer workers."""

from __future__ import annotations

from dreamgym.wire.settings import ServiceSettings


class TrainerSettings(ServiceSettings):
    trainer_threads: int = 2
    """Torch threads of an update; rollouts use one thread, since the experience model runs beside them."""
    trainer_slots: int = 128
    """Episodes that the policy engine decodes in one batch."""
    heartbeat_s: float = 2.0
    """Interval of heartbeats; metrics and events travel with them."""
    child_restarts: int = 5
    """How often a training process that was killed is started again before the job fails."""
    checkpoints_kept: int = 2
    """Checkpoints kept of each stage while it runs."""
    checkpoint_interval_s: float = 20.0
    """Shortest time between two checkpoints of supervised training."""
