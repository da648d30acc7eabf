"""Embeds (state, action) for similarity search."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dreamgym.core.errors import ConflictError

DIMENSIONS = 384
STATE_TAIL_CHARACTERS = 200
"""Of a state only its end is embedded: what just happened, and what an encoder of bounded length can read."""

Vectors = NDArray[np.float32]


class Encoder(Protocol):
    """Turns texts of (state, action) into unit vectors.

    `name` is stored with an environment's data: vectors of encoders with different names are never compared, so a
    change of the vectors is a change of the name. `encode` answers shape (len(texts), 384), may block and must be
    deterministic. A text is a `pair_text`.
    """

    @property
    def name(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> Vectors: ...


def pair_text(state: str, action: str) -> str:
    """What an encoder reads: the action, a line break, the end of the state."""
    one_line = " ".join(action[: 2 * STATE_TAIL_CHARACTERS].split())
    return f"{one_line}\n{state.rstrip()[-STATE_TAIL_CHARACTERS:]}"


class HashingEncoder:
    """Words and pairs of neighbouring words, hashed into signed counts (feature hashing, Weinberger et al. 2009).

    It knows no synonyms, but needs no model and about 50 microseconds a pair. Action and state are scaled apart, so
    that a short action is not drowned by a long state.
    """

    name = "hashing-1"
    _ACTION_SHARE = 0.6

    def encode(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        for row, text in enumerate(texts):
            action, _, state = text.partition("\n")
            parts = ((action, "a", self._ACTION_SHARE), (state, "s", 1.0 - self._ACTION_SHARE))
            for words, salt, share in parts:
                part = _hashed_counts(words, salt)
                if (length := float(np.linalg.norm(part))) > 0.0:
                    vectors[row] += np.sqrt(share) * part / length
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        # A pair without a single word still needs a direction: cosine distance to a zero vector is undefined.
        vectors[lengths[:, 0] == 0.0, 0] = 1.0
        lengths[lengths == 0.0] = 1.0
        vectors /= lengths
        return vectors


def _hashed_counts(text: str, salt: str) -> Vectors:
    words = _WORD.findall(text.lower())
    features = [*words, *(f"{first} {second}" for first, second in pairwise(words))]
    counts = np.zeros(DIMENSIONS, dtype=np.float32)
    for feature in features:
        place, sign = _bucket(salt, feature)
        counts[place] += sign
    return counts


# Digits apart from letters: "drawer 3" and "drawer 4", written either way, share the word.
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


@lru_cache(maxsize=1 << 16)
def _bucket(salt: str, feature: str) -> tuple[int, float]:
    # Not Python's hash: that differs in every process.
    value = zlib.crc32(f"{salt}\0{feature}".encode())
    return (value >> 1) % DIMENSIONS, 1.0 if value & 1 else -1.0


def make_encoder(kind: str) -> Encoder:
    """The encoder of setting DREAMGYM_ENCODER."""
    if kind == "minilm":
        from dreamgym.replay.minilm import MiniLmEncoder

        return MiniLmEncoder()
    return HashingEncoder()


def require_same_encoder(environment_id: str, *, stored: str, ours: str, next_: str = "") -> None:
    """ConflictError if an environment's data was embedded by another encoder than ours, or is being embedded anew."""
    if next_:
        raise ConflictError(
            f"The data of environment {environment_id!r} is being embedded anew by {next_!r}.",
            remedy="Wait for the job of kind `reembed`; if it was stopped, launch it again: it goes on where it was.",
        )
    if stored != ours:
        raise ConflictError(
            f"The data of environment {environment_id!r} was embedded by {stored!r}, and this service runs {ours!r}.",
            remedy="Launch a job of kind `reembed` for the environment, or set "
            f"DREAMGYM_ENCODER={stored.split('-')[0]} again.",
        )
