"""The adapters by name. A factory imports its package only when it is called."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from dreamgym.bridge.adapters.protocol import EnvironmentAdapter
from dreamgym.core.errors import AdapterMissingError


@dataclass(frozen=True, slots=True)
class _Entry:
    module: str
    factory: str
    extra: str
    packages: tuple[str, ...]


_ADAPTERS: dict[str, _Entry] = {
    "alfworld": _Entry(
        "dreamgym.bridge.adapters.alfworld_engine", "AlfworldAdapter", "alfworld", ("alfworld", "textworld")
    ),
}


def adapter_names() -> tuple[str, ...]:
    """All names that `adapter_factory` knows, whether or not their packages are installed."""
    return tuple(sorted(_ADAPTERS))


def adapter_factory(name: str) -> Callable[[], EnvironmentAdapter]:
    """The factory of an adapter, with its packages found but not yet imported.

    Raises `AdapterMissingError` for an unknown name, or naming the extra to install for a missing package.
    """
    entry = _ADAPTERS.get(name)
    if entry is None:
        raise AdapterMissingError(
            f"There is no adapter named {name!r}.", remedy=f"Use one of: {', '.join(adapter_names())}."
        )
    missing = [package for package in entry.packages if importlib.util.find_spec(package) is None]
    if missing:
        raise AdapterMissingError(
            f"The adapter {name} needs the package {', '.join(missing)}, which is not installed.",
            remedy=f"Install it with `pip install dreamgym[{entry.extra}]`.",
        )
    factory: Callable[[], EnvironmentAdapter] = getattr(importlib.import_module(entry.module), entry.factory)
    return factory


def create_adapter(name: str) -> EnvironmentAdapter:
    """A new adapter; the caller closes it."""
    return adapter_factory(name)()
