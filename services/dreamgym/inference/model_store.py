"""Model versions and checkpoints as immutable folders of the object store.

A version is written aside, hashed, and published by renaming the folder and writing `PUBLISHED.json` last: a reader sees
either a whole version or none. Models are loaded from safetensors only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from dreamgym.core.errors import ConflictError, InvalidInputError, ModelMissingError, StorageFullError

MARKER = "PUBLISHED.json"
_FORBIDDEN = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True)
class Published:
    """One published folder: its place below the root and the hash over all its files."""

    location: str
    path: Path
    sha256: str
    size_bytes: int


class ModelStore:
    """Folders below one root (`DREAMGYM_OBJECT_STORE`)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def writing(self, location: str) -> Iterator[Path]:
        """A fresh folder to fill; on leaving without an error it is published as `location`.

        Raises StorageFullError if the disk is full, ConflictError if the location is published already or holds others.
        """
        target = self._resolve(location)
        self._refuse_parent(location)
        if (target / MARKER).exists():
            raise ConflictError(f"{location} is published already; versions are immutable.", remedy="Use a new name.")
        aside = self.root / ".writing" / uuid.uuid4().hex
        try:
            aside.mkdir(parents=True)
            yield aside
            files = {str(p.relative_to(aside)): _sha256(p) for p in sorted(aside.rglob("*")) if p.is_file()}
            marker = {"files": files, "sha256": hashlib.sha256(orjson.dumps(sorted(files.items()))).hexdigest()}
            if target.exists():  # a torn folder without a marker, from a process that was killed
                shutil.rmtree(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            aside.rename(target)
            _write_atomically(target / MARKER, orjson.dumps(marker))
        except Exception as error:
            if _is_full(error):
                raise StorageFullError(
                    f"No room left in the object store {self.root} while writing {location}.",
                    remedy="Free disk space or point DREAMGYM_OBJECT_STORE elsewhere; then resume the job.",
                ) from error
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def published(self, location: str) -> Published:
        """A published folder. Raises ModelMissingError if it is absent or not whole."""
        path = self._resolve(location)
        marker = path / MARKER
        if not marker.exists():
            raise ModelMissingError(
                f"There is no model at {location!r} in the object store {self.root}.",
                remedy="Train it, or check that every service uses the same DREAMGYM_OBJECT_STORE.",
            )
        record = orjson.loads(marker.read_bytes())
        missing = [name for name in record["files"] if not (path / name).exists()]
        if missing:
            raise ModelMissingError(
                f"The model at {location!r} lost its files {missing}.", remedy="Restore or retrain."
            )
        size = sum((path / name).stat().st_size for name in record["files"])
        return Published(location=location, path=path, sha256=record["sha256"], size_bytes=size)

    def verify(self, location: str) -> None:
        """Raise ModelMissingError if any file of a published folder changed since it was written."""
        path = self.published(location).path
        record = orjson.loads((path / MARKER).read_bytes())
        changed = [name for name, digest in record["files"].items() if _sha256(path / name) != digest]
        if changed:
            raise ModelMissingError(f"The model at {location!r} was changed: {changed}.", remedy="Restore or retrain.")

    def exists(self, location: str) -> bool:
        return (self._resolve(location) / MARKER).exists()

    def listed(self, prefix: str) -> list[str]:
        """Published locations directly below a prefix, sorted."""
        base = self._resolve(prefix)
        return sorted(f"{prefix}/{p.parent.name}" for p in base.glob(f"*/{MARKER}")) if base.is_dir() else []

    def remove(self, location: str) -> None:
        """Remove a folder: first its marker, so that no reader sees half of it."""
        path = self._resolve(location)
        self._refuse_parent(location)
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)

    def _resolve(self, location: str) -> Path:
        inside = "\0" not in location and (self.root / location).resolve().is_relative_to(self.root.resolve())
        if not inside:
            raise InvalidInputError(f"The location {location!r} leaves the object store.")
        return (self.root / location).resolve()

    def _refuse_parent(self, location: str) -> None:
        """Published folders lie side by side, never inside one another: replacing or removing one must not take others."""
        path = self._resolve(location)
        if path == self.root.resolve() or any(found.parent != path for found in path.rglob(MARKER)):
            raise ConflictError(
                f"{location!r} is a folder of published folders.", remedy="Name one of them, or a new one beside them."
            )


def refuse_unsafe_weights(path: Path) -> None:
    """Raise InvalidInputError if a model folder holds weights in a format that can run code when loaded."""
    unsafe = [p.name for p in path.rglob("*") if p.suffix.lower() in _FORBIDDEN]
    if unsafe:
        raise InvalidInputError(f"{path} holds {unsafe}: only safetensors are loaded.", remedy="Convert the weights.")


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # safetensors and torch report a failed write as an error of their own, whose text carries the system's words.
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_atomically(path: Path, data: bytes) -> None:
    aside = path.with_name(path.name + ".new")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
