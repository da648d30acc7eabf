"""The bridge's fixtures: real processes, real Postgres, a corridor for a world."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dreamgym.bridge.settings import BridgeSettings
from dreamgym.wire.settings import ServiceSettings
from support.bridge import (
    Rows,
)

HERE = Path(__file__).parent.parent


@pytest.fixture
def settings(service_settings: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BridgeSettings:
    services = HERE.parents[1] / "services"
    monkeypatch.setenv("PYTHONPATH", f"{services}{os.pathsep}{HERE}")
    return BridgeSettings(
        **{
            **service_settings.model_dump(),
            "state_dir": tmp_path / "state",
            "bridge_address": "127.0.0.1:0",
            "bridge_adapters": {"corridor": "corridor:CorridorAdapter"},
            "bridge_record_retry_s": 0.05,
        }
    )


@pytest.fixture
def rows(database_url: str) -> Rows:
    return Rows(database_url)
