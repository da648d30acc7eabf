"""Log files of supervised processes: one per service, rotated when the platform starts, bounded while it runs."""

import shutil
from pathlib import Path

KEPT = 3
LARGEST_BYTES = 64 * 1024 * 1024


def rotate(path: Path) -> None:
    """Move NAME.log to NAME.log.1 and so on, keeping `KEPT` old ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.stat().st_size == 0:
        return
    for number in range(KEPT, 0, -1):
        older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))


def bound(path: Path, largest_bytes: int = LARGEST_BYTES) -> bool:
    """Copy a log that has grown too long aside and empty it; its writer appends, so it goes on at the start."""
    try:
        if path.stat().st_size <= largest_bytes:
            return False
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        with path.open("r+b") as file:
            file.truncate(0)
    except OSError:
        return False  # a log is no reason to stop anything
    return True


def tail(path: Path, lines: int = 20, since: int = 0) -> str:
    """The last `lines` lines of a log, at most 16 KiB of them, not before the offset `since`."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 16_384, min(since, size)))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
