"""The environment variables that every child process gets."""

import os
from collections.abc import Mapping
from pathlib import Path

import dreamgym

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
# Of the command line, not of a service: a key of a customer has no business in a service's environment.
_CALLERS_OWN = ("DREAMGYM_API_KEY", "DREAMGYM_URL", "DREAMGYM_TEST_DATA")
_PASSED_ON_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def base_environment(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The part of our environment that every service gets: the platform's own settings, and no other secret of the shell.

    What the launcher sets itself (addresses, token, folders) wins over a setting of the same name.
    """
    kept = {name: source[name] for name in (*_PASSED_ON, *_PASSED_ON_DEVICES) if name in source}
    kept |= {name: value for name, value in source.items() if name.startswith("DREAMGYM_") and name not in _CALLERS_OWN}
    return {**kept, "PYTHONPATH": _python_path(source), "PYTHONUNBUFFERED": "1"}


def _python_path(source: Mapping[str, str]) -> str:
    """Our PYTHONPATH made absolute, since services run in another folder, and the root of this very package."""
    given = [str(Path(entry).absolute()) for entry in source.get("PYTHONPATH", "").split(os.pathsep) if entry]
    root = str(Path(dreamgym.__file__).parents[1])
    return os.pathsep.join(given if root in given else [root, *given])
