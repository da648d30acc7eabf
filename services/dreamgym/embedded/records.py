"""Small JSON records in the state folder, replaced atomically and readable by their owner only."""

import json
import os
from pathlib import Path
from typing import Any


def read_record(path: Path) -> dict[str, Any]:
    """The record at `path`; an absent, unreadable or torn one reads as empty, because records can be made again."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Replace the record at `path` in one step (mode 0600)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, sort_keys=True)
        file.write("\n")
    aside.replace(path)
