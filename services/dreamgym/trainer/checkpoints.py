"""Checkpoints of a running stage: numbered folders in the object store, the newest whole one counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dreamgym.inference.model_store import ModelStore
from dreamgym.trainer.training_state import TrainingState


class StageCheckpoints:
    """Checkpoints of one stage of one job, kept while it runs and removed when its model is published."""

    def __init__(self, store: ModelStore, job_id: str, stage: int, kept: int = 2, series: str = "") -> None:
        """`series` names a second row of checkpoints of the same stage, for example those that a canary passed."""
        self.store = store
        self.prefix = f"checkpoints/{job_id}/{stage}{series and '-' + series}"
        self.kept = max(1, kept)

    def save(self, number: int, state: TrainingState, progress: dict[str, Any]) -> str:
        """Publish checkpoint `number` and forget the oldest ones. One that exists already is kept as it is."""
        location = f"{self.prefix}/{number:06d}"
        if not self.store.exists(location):
            with self.store.writing(location) as folder:
                state.save(folder, progress)
        for old in self.store.listed(self.prefix)[: -self.kept]:
            self.store.remove(old)
        return location

    def newest(self) -> Path | None:
        """Folder of the newest whole checkpoint, or None."""
        listed = self.store.listed(self.prefix)
        return self.store.published(listed[-1]).path if listed else None

    def clear(self) -> None:
        for location in self.store.listed(self.prefix):
            self.store.remove(location)
