"""The registry of adapters finds them by name and says what is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from dreamgym.bridge.adapters.registry import adapter_factory, adapter_names, create_adapter
from dreamgym.core.errors import AdapterMissingError


def test_an_unknown_adapter_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AdapterMissingError, match="alfworld"):
        adapter_factory("atari")


def test_a_missing_package_is_answered_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AdapterMissingError, match=r"pip install dreamgym\[alfworld\]"):
        create_adapter("alfworld")


def test_asking_for_the_names_imports_no_environment() -> None:
    code = (
        "import sys; from dreamgym.bridge.adapters.registry import adapter_names; adapter_names();"
        "sys.exit(any(name in sys.modules for name in ('alfworld', 'textworld', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert adapter_names() == ("alfworld",)
