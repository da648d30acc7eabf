"""Streams a published folder as a tar file of known length, without a copy of it anywhere."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1024 * 1024
_END = 2 * tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Archive:
    """The files of a folder, ready to be sent under a top folder `name`."""

    name: str
    members: tuple[tuple[Path, tarfile.TarInfo], ...]

    @classmethod
    def of(cls, folder: Path, name: str) -> Archive:
        """Read names and sizes; blocking, but small."""
        members = []
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
            info = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            info.size = path.stat().st_size
            info.mode = 0o644
            members.append((path, info))
        return cls(name, tuple(members))

    @property
    def size_bytes(self) -> int:
        """Length of the whole tar file."""
        return _END + sum(len(_header(info)) + info.size + _padding(info.size) for _, info in self.members)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The tar file, piece by piece; files are read beside the event loop."""
        for path, info in self.members:
            yield _header(info)
            left = info.size
            file = await asyncio.to_thread(path.open, "rb")
            try:
                while left > 0 and (data := await asyncio.to_thread(file.read, min(_CHUNK, left))):
                    left -= len(data)
                    yield data
            finally:
                await asyncio.to_thread(file.close)
            yield b"\0" * _padding(info.size)
        yield b"\0" * _END


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE
