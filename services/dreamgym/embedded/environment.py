"""The environment variables that every child process gets."""

import os
from collections.abc import Mapping
from pathlib import Path

import dreamgym

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_PASSED_ON_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def base_environment(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The part of our environment that every service gets; no secret of the caller's shell travels along."""
    kept = {name: source[name] for name in (*_PASSED_ON, *_PASSED_ON_DEVICES) if name in source}
    return {**kept, "PYTHONPATH": _python_path(source), "PYTHONUNBUFFERED": "1"}


def _python_path(source: Mapping[str, str]) -> str:
    """Our PYTHONPATH made absolute, since services run in another folder, and the root of this very package."""
    given = [str(Path(entry).absolute()) for entry in source.get("PYTHONPATH", "").split(os.pathsep) if entry]
    root = str(Path(dreamgym.__file__).parents[1])
    return os.pathsep.join(given if root in given else [root, *given])
