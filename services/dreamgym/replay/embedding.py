"""Runs the encoder beside the event loop, and remembers what it has embedded."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from dreamgym.replay.encoder import DIMENSIONS, Encoder, pair_text

CHUNK = 64
"""Texts per turn of the encoder's thread: a search waits for one chunk of a bulk append, not for all of it."""

HalfVectors = NDArray[np.float16]


def vector_literal(vector: Sequence[float], *, digits: int = 5) -> str:
    """A vector as pgvector reads it; 5 digits keep half precision exactly, 4 do for a query."""
    return "[" + ",".join([f"{value:.{digits}g}" if value else "0" for value in vector]) + "]"


class Embedder:
    """Embeddings of (state, action) pairs, shape (pairs, 384), half precision as stored."""

    def __init__(self, encoder: Encoder, cache_texts: int) -> None:
        self.encoder = encoder
        self._cache: OrderedDict[bytes, NDArray[np.float16]] = OrderedDict()
        self._cache_texts = cache_texts
        # One thread: the encoder need not be thread-safe, and two would only share the same cores.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    async def embed(self, pairs: Sequence[tuple[str, str]]) -> HalfVectors:
        """Embed `pairs` of (state, action) without blocking the event loop."""
        texts = [pair_text(state, action) for state, action in pairs]
        keys = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._cache}
        found = {key: self._cache[key] for key in keys if key not in missing}
        for key in found:
            self._cache.move_to_end(key)
        waiting = list(missing.items())
        for start in range(0, len(waiting), CHUNK):
            chunk = waiting[start : start + CHUNK]
            vectors = await self._encode([text for _, text in chunk])
            for (key, _), vector in zip(chunk, vectors, strict=True):
                found[key] = self._cache[key] = vector.copy()  # a view would keep the whole chunk
            while len(self._cache) > self._cache_texts:
                self._cache.popitem(last=False)
        return np.stack([found[key] for key in keys]) if keys else np.zeros((0, DIMENSIONS), np.float16)

    async def _encode(self, texts: list[str]) -> HalfVectors:
        vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self.encoder.encode, texts)
        return vectors.astype(np.float16)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
