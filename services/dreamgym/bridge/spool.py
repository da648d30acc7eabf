"""Recorded episodes on disk until the replay store has them: one file each, whole or not there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from google.protobuf.message import DecodeError

from dreamgym.v1 import replay_pb2 as pb

_SUFFIX = ".episode"


class Spool:
    """A folder of episodes. All methods block; call them in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._refused = folder / "refused"

    def put(self, episode: pb.StoredEpisode) -> None:
        """Keep an episode through a crash of machine or process. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(episode.episode_id)
        aside = path.with_suffix(".part")
        with aside.open("wb") as file:
            file.write(episode.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)

    def remove(self, episode_id: str) -> None:
        self._path(episode_id).unlink(missing_ok=True)

    def refuse(self, episode: pb.StoredEpisode) -> Path:
        """Set an episode aside that will never be stored, for someone to look at. Raises OSError."""
        self._refused.mkdir(parents=True, exist_ok=True)
        target = self._refused / self._path(episode.episode_id).name
        target.write_bytes(episode.SerializeToString())
        self.remove(episode.episode_id)
        return target

    def waiting(self) -> list[pb.StoredEpisode]:
        """What an earlier bridge left, oldest first. An unreadable file is set aside."""
        if not self._folder.is_dir():
            return []
        found = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime):
            try:
                found.append(pb.StoredEpisode.FromString(path.read_bytes()))
            except DecodeError:
                path.replace(path.with_suffix(".unreadable"))
        return found

    def _path(self, episode_id: str) -> Path:
        return self._folder / (hashlib.sha256(episode_id.encode()).hexdigest()[:40] + _SUFFIX)
