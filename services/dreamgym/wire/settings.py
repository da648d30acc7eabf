"""Settings that every service shares. Prefix `DREAMGYM_`; `dreamgym config` prints the effective ones."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServiceSettings(BaseSettings):
    """Addresses and secrets by which the services find and trust one another."""

    model_config = SettingsConfigDict(env_prefix="DREAMGYM_", extra="ignore")

    database_url: str = "postgresql+psycopg://postgres@127.0.0.1:5432/dreamgym"
    broker_url: str = "redis://127.0.0.1:6379/0"
    object_store: Path = Path("state/objects")
    """Folder that holds model versions, checkpoints and datasets."""
    service_token: SecretStr = SecretStr("")
    """Shared secret of internal gRPC calls; empty refuses to start a server."""

    replay_address: str = "127.0.0.1:7101"
    experience_address: str = "127.0.0.1:7102"
    curriculum_address: str = "127.0.0.1:7103"
    bridge_address: str = "127.0.0.1:7104"
    jobs_address: str = "127.0.0.1:7105"
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 7100

    call_deadline_s: float = 60.0
    """Deadline of a unary call; streams have one per message."""
    drain_s: float = 10.0
    """How long a server finishes open calls after SIGTERM."""
    log_level: str = "INFO"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    """Port on which a gRPC service shows its Prometheus metrics over HTTP; 0: none. The gateway has them at /metrics."""
