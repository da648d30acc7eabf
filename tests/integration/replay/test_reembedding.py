"""Embeddings made anew after a change of the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import create_engine, text

from dreamgym.core.errors import ConflictError, NotFoundError
from dreamgym.replay import reembedding
from dreamgym.replay.encoder import HashingEncoder, Vectors
from dreamgym.replay.partitions import partition_name
from dreamgym.v1 import replay_pb2 as pb
from support.replay import Serve, append, episode, refused, search

if TYPE_CHECKING:  # the asynchronous stub exists only for the type checker
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub

pytestmark = pytest.mark.integration


class ByLength(HashingEncoder):
    """Knows nothing but how long a text is."""

    name = "length-1"

    def encode(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), 384), dtype=np.float32)
        vectors[:, 0] = [len(one) for one in texts]
        vectors[:, 1] = 10.0
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class ByLengthAgain(ByLength):
    name = "length-2"


async def made_anew(replay: ReplayAsyncStub, environment_id: str) -> list[tuple[int, int]]:
    request = pb.ReembedRequest(environment_id=environment_id)
    return [(one.done, one.total) async for one in replay.Reembed(request, timeout=60)]


async def test_another_encoder_takes_over_an_environment(serve: Serve, environment_id: str, database_url: str) -> None:
    old, _ = await serve(replay_index_from_transitions=20)
    steps = [("a room", "take a short one"), ("a room", "take the very much longer one from the shelf")]
    await append(old, [episode(environment_id, f"e{n}", steps) for n in range(20)])
    new, store = await serve(ByLength(), replay_index_from_transitions=20)
    assert await made_anew(new, environment_id) == [(0, 40), (40, 40)]
    assert (await new.Statistics(pb.StatisticsRequest(environment_id=environment_id))).encoder == "length-1"
    hits = await search(new, environment_id, "a room", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", top_k=1)
    assert hits[0].transition.action == steps[1][1]
    assert hits[0].similarity > 0.9999
    await append(new, [episode(environment_id, "later")])
    assert isinstance(await refused(search(old, environment_id, "a room", "look")), ConflictError)
    assert await made_anew(new, environment_id) == [(42, 42)], "nothing is left to do"
    await store.indexer.idle()
    engine = create_engine(database_url)
    with engine.connect() as connection:
        indexes = connection.scalar(
            text("SELECT count(*) FROM pg_indexes WHERE tablename = :name AND indexdef LIKE '%hnsw%'"),
            {"name": partition_name(environment_id)},
        )
    engine.dispose()
    assert indexes == 2


async def test_an_interrupted_run_goes_on_where_it_was_and_the_environment_waits(
    serve: Serve, environment_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reembedding, "BATCH", 4)
    old, _ = await serve()
    await append(old, [episode(environment_id, f"e{n}") for n in range(10)])
    new, _ = await serve(ByLength())
    stream = new.Reembed(pb.ReembedRequest(environment_id=environment_id), timeout=60)
    seen = [one.done async for one in _first(stream, 3)]
    assert seen == [0, 4, 8]
    stream.cancel()
    for replay in (old, new):
        for call in (
            append(replay, [episode(environment_id, "new")]),
            search(replay, environment_id, "a room", "look"),
        ):
            error = await refused(call)
            assert isinstance(error, ConflictError)
            assert "embedded anew by 'length-1'" in error.message
    resumed = await made_anew(new, environment_id)
    assert resumed[0][0] in (8, 12)
    assert resumed[-1] == (20, 20)
    assert len(await search(new, environment_id, "a room", "look", top_k=20)) == 20


async def test_a_third_encoder_starts_over(serve: Serve, environment_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reembedding, "BATCH", 4)
    old, _ = await serve()
    await append(old, [episode(environment_id, f"e{n}") for n in range(5)])
    second, _ = await serve(ByLength())
    stream = second.Reembed(pb.ReembedRequest(environment_id=environment_id), timeout=60)
    [_ async for _ in _first(stream, 2)]
    stream.cancel()
    third, _ = await serve(ByLengthAgain())
    assert (await made_anew(third, environment_id))[0] == (0, 10)
    assert (await third.Statistics(pb.StatisticsRequest(environment_id=environment_id))).encoder == "length-2"


async def test_an_environment_without_data_has_nothing_to_embed(serve: Serve, environment_id: str) -> None:
    replay, _ = await serve()
    assert isinstance(await refused(made_anew(replay, environment_id)), NotFoundError)


async def _first(stream: object, count: int) -> object:
    async for one in stream:  # type: ignore[attr-defined]
        yield one
        count -= 1
        if not count:
            return
