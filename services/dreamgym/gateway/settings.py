"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path

from dreamgym.wire.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """What the gateway adds to the shared settings."""

    state_dir: Path | None = None
    """Folder in which the first admin key is written (`admin.key`, mode 0600); without it the log shows the key once."""
    lease_ttl_s: float = 30.0
    """How long a trainer holds a job without a heartbeat."""
    redispatch_after_s: float = 60.0
    """After this a queued job that no worker took is sent to the broker again; doubled each time, up to 32 times it."""
    sweep_interval_s: float = 2.0
    """How often lost leases and unsent jobs are looked for."""
    broker_timeout_s: float = 5.0
    """Deadline for sending one message to the broker."""
    feed_poll_s: float = 0.5
    """How often an open event stream looks for news."""
    database_pool_size: int = 10
    max_body_bytes: int = 8 * 1024 * 1024
    """Largest JSON body; uploads have limits of their own."""
    max_upload_bytes: int = 1024 * 1024 * 1024
    """Largest upload of tasks or trajectories, after decompression."""
    max_line_bytes: int = 8 * 1024 * 1024
    """Largest line of an upload, after decompression."""
    upload_idle_s: float = 60.0
    """How long an upload may send nothing."""
    play_idle_s: float = 600.0
    """After this long without an action a play session is closed."""
    max_play_sessions: int = 16
    play_turn_deadline_s: float = 120.0
    """Deadline of one step of a play session."""
