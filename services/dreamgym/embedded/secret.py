"""Generated secrets that live in files of mode 0600 and are never put on a command line."""

import os
import secrets
from pathlib import Path


def read_or_create_secret(path: Path) -> str:
    """The secret in `path`, generated at the first call: 32 random bytes, URL-safe text."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists() or not path.read_text(encoding="ascii").strip():
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        write_private(aside, secrets.token_urlsafe(32) + "\n")
        aside.replace(path)
    return path.read_text(encoding="ascii").strip()


def write_private(path: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Write a new file of mode 0600, owned by (uid, gid) `owner` before the text is in it."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        file.write(text)
