"""Model folders: weights, tokenizer, card (`dreamgym.json`), and for an experience model its recorded worlds."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import torch

from dreamgym.core.errors import ModelMissingError
from dreamgym.inference.model_store import ModelStore, Published

CARD = "dreamgym.json"
WORLDS = "worlds.jsonl"
BASE_FOLDER = Path(__file__).parent / "base_model" / "checkpoint"


def base_path() -> Path:
    """Folder of the common base that the platform ships."""
    if not (BASE_FOLDER / "config.json").exists():
        raise ModelMissingError(
            f"The common base model is missing from {BASE_FOLDER}.",
            remedy="Rebuild it with `python -m dreamgym.trainer.base_model.pretrain`, or name a model version instead.",
        )
    return BASE_FOLDER


def publish_model(
    store: ModelStore,
    version: str,
    model: Any,
    source: Path,
    card: Mapping[str, Any],
    worlds: Iterable[Mapping[str, Any]] = (),
) -> Published:
    """Write a model version and publish it. `source` is the folder whose tokenizer and config it keeps.

    Publishing the same version again (a resumed attempt that was killed right after) keeps the first.
    """
    location = f"models/{version}"
    if not store.exists(location):
        with store.writing(location) as folder:
            model.to(torch.float32).save_pretrained(folder, safe_serialization=True)
            for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
                if (source / name).exists():
                    shutil.copy(source / name, folder / name)
            (folder / CARD).write_bytes(orjson.dumps(dict(card), option=orjson.OPT_INDENT_2))
            lines = [orjson.dumps(dict(world)) for world in worlds]
            if lines:
                (folder / WORLDS).write_bytes(b"\n".join(lines) + b"\n")
    return store.published(location)


def read_card(folder: Path) -> dict[str, Any]:
    """A model's card; an empty one for a folder without (a plain transformers checkpoint)."""
    path = folder / CARD
    card: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    return card


def vocabulary_size(folder: Path) -> int:
    """Rows of a model's output layer; may be more than its tokenizer has tokens."""
    return int(orjson.loads((folder / "config.json").read_bytes())["vocab_size"])


def hash_of(value: Any) -> str:
    """Short content hash for manifests."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()[:16]
