"""Reading what the alfworld package ships: floor plans, tables of objects, domain and grammar.

The package creates a cache folder in the home directory as soon as it is imported without `ALFWORLD_DATA`.
`import_alfworld` sets that variable to a temporary folder first, so that nothing of the kind happens.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from dreamgym.core.errors import AdapterMissingError

DATA_VARIABLE = "ALFWORLD_DATA"


def import_alfworld(module: str) -> ModuleType:
    """Import a module of the alfworld package (or of TextWorld beneath it) without touching the home directory.

    Raises `AdapterMissingError` naming the extra to install.
    """
    if DATA_VARIABLE not in os.environ:
        os.environ[DATA_VARIABLE] = str(Path(tempfile.gettempdir()) / "dreamgym-alfworld")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AdapterMissingError(
            f"The module {module} cannot be imported ({error}).",
            remedy="Install the package with `pip install dreamgym[alfworld]`.",
        ) from error


@dataclass(frozen=True, slots=True)
class FloorPlan:
    """One ALFRED room as its layout files describe it.

    receptacles: (identifier, type, viewpoint) with viewpoint = x, z in metres, rotation and horizon in degrees.
    object_types: classes of things that stand in the room in the original data.
    """

    name: str
    receptacles: tuple[tuple[str, str, tuple[float, float, int, int]], ...]
    object_types: frozenset[str]

    @property
    def receptacle_types(self) -> frozenset[str]:
        """The types that occur in this room."""
        return frozenset(kind for _, kind, _ in self.receptacles)


@dataclass(frozen=True, slots=True)
class Tables:
    """ALFRED's own tables: what may lie where, and what can be done to what. All keyed by class name."""

    can_contain: dict[str, frozenset[str]]
    openable: frozenset[str]
    movable_receptacles: frozenset[str]
    heatable: frozenset[str]
    coolable: frozenset[str]
    cleanable: frozenset[str]
    sliceable: frozenset[str]


def receptacle_type(identifier: str) -> str:
    """The type of a receptacle: the basin named at the end of the identifier, else what stands before the first bar."""
    parts = identifier.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


@lru_cache(maxsize=1)
def _package_folder() -> Path:
    return Path(str(import_alfworld("alfworld").__file__)).parent


@lru_cache(maxsize=1)
def tables() -> Tables:
    """Load ALFRED's tables; slices and other classes that only exist after an action are left out."""
    constants = import_alfworld("alfworld.gen.constants")
    actions = {name: frozenset(classes) for name, classes in constants.VAL_ACTION_OBJECTS.items()}
    known = frozenset(constants.OBJECTS)
    return Tables(
        can_contain={name: frozenset(classes) & known for name, classes in constants.VAL_RECEPTACLE_OBJECTS.items()},
        openable=frozenset(constants.OPENABLE_CLASS_SET),
        movable_receptacles=frozenset(constants.MOVABLE_RECEPTACLES),
        heatable=actions["Heatable"] & known,
        coolable=actions["Coolable"] & known,
        cleanable=actions["Cleanable"] & known,
        sliceable=actions["Sliceable"] & known,
    )


@lru_cache(maxsize=128)
def floor_plan(name: str) -> FloorPlan:
    """Load one room, e.g. `FloorPlan12`."""
    folder = _package_folder() / "gen" / "layouts"
    openable = folder / f"{name}-openable.json"
    if not openable.is_file():
        raise AdapterMissingError(
            f"The installed alfworld package has no layout {name}.",
            remedy="Use a floor plan that the package ships, or install alfworld==0.4.2.",
        )
    viewpoints = json.loads(openable.read_text())
    object_types = json.loads((folder / f"{name}-objects.json").read_text())
    return FloorPlan(
        name=name,
        receptacles=tuple(
            (identifier, receptacle_type(identifier), (float(v[0]), float(v[1]), int(v[2]), int(v[3])))
            for identifier, v in sorted(viewpoints.items())
        ),
        object_types=frozenset(object_types),
    )


@lru_cache(maxsize=1)
def domain_text() -> str:
    """The PDDL domain of ALFWorld, unchanged."""
    return (_package_folder() / "data" / "alfred.pddl").read_text()


@lru_cache(maxsize=1)
def grammar_text() -> str:
    """The text grammar of ALFWorld, unchanged; its goal reads `UNKNOWN GOAL`."""
    return (_package_folder() / "data" / "alfred.twl2").read_text()


@lru_cache(maxsize=16)
def goal_definition(task_type: str) -> tuple[str, tuple[str, ...]]:
    """The goal of a task type as (PDDL template, instruction templates), from ALFRED's goal library."""
    entry = import_alfworld("alfworld.gen.goal_library").gdict[task_type]
    return str(entry["pddl"]), tuple(entry["templates"])
