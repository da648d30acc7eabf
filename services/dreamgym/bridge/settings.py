"""Settings of the bridge. Prefix `DREAMGYM_`; lists and mappings are JSON."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dreamgym.bridge.guard import ActionPolicy
from dreamgym.wire.settings import ServiceSettings


class BridgeSettings(ServiceSettings):
    """How many adapter processes there are, how long they may take, what actions they may be sent."""

    state_dir: Path = Path("state")
    """Folder for what must survive a restart outside the database: recorded episodes not yet in the replay store."""

    bridge_pool_size: int = Field(6, ge=1)
    """Adapter processes, each playing one episode at a time; together the capacity of this bridge."""
    bridge_episodes_per_worker: int = Field(200, ge=1)
    """Episodes after which an adapter process is replaced, so that an engine's leak stays bounded."""
    bridge_capacity_wait_s: float = Field(100.0, ge=0)
    """How long a reset waits for a free adapter process before it is refused for want of capacity.

    Less than a rollout's `turn_deadline_s` (120 s), so that the caller learns the cause instead of a mere time-out.
    """
    bridge_start_deadline_s: float = Field(60.0, gt=0)
    """Longest start of an adapter process, with the import of its engine."""
    bridge_reset_deadline_s: float = Field(60.0, gt=0)
    """Longest reset; after it the adapter process is killed and the episode fails."""
    bridge_step_deadline_s: float = Field(20.0, gt=0)
    """Longest step; after it the adapter process is killed and the episode fails."""
    bridge_idle_limit_s: float = Field(900.0, gt=0)
    """Longest silence of the client within an episode before its adapter process is taken back."""
    bridge_session_ttl_s: float = Field(60.0, gt=0)
    """A session whose bridge has not renewed it for this long is taken for dead and closed in the database."""

    bridge_database_timeout_s: int = Field(5, ge=1)
    """Longest wait for the database to connect or to answer one statement."""
    bridge_database_connections: int = Field(8, ge=1)

    bridge_adapters: dict[str, str] = Field(default_factory=dict)
    """The operator's own adapters: name to `module:factory`, beside the built-in ones."""
    bridge_action_policies: dict[str, ActionPolicy] = Field(default_factory=dict)
    """Action policies by environment id, adapter name or `*`; all that fit an episode hold."""
    bridge_action_characters: int = Field(2000, ge=1)
    """Longest action that is sent to a real environment, in characters."""

    bridge_record_wait_s: float = Field(10.0, ge=0)
    """How long a stream's end waits for the recorded episode to be stored; after it the spool keeps trying."""
    bridge_record_retry_s: float = Field(5.0, gt=0)
    """Pause between attempts to store what is in the spool."""

    @property
    def bridge_spool(self) -> Path:
        """Folder of recorded episodes that wait for the replay store."""
        return self.state_dir / "bridge" / "spool"
