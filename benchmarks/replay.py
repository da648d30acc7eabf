"""How fast and how exact the replay store is: `make bench-replay`; with a million rows about an hour on two cores.

The rows are the example seeds with other numbers of rooms and things. They come in as messages, are checked, and stored by
binary COPY; then the vector indexes are built, and single queries go through gRPC to the service in a process of its own.
Recall compares a query's four hits with an exact scan: a hit counts if it is as near as the fourth nearest.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from benchmarks.results_file import Metric, write_results
from dreamgym.core.statistics import wilson
from dreamgym.embedded.migrate import find_alembic_ini, migrate
from dreamgym.embedded.ports import choose_port
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.replay.admission import Offer
from dreamgym.replay.database import open_engine
from dreamgym.replay.embedding import Embedder, vector_literal
from dreamgym.replay.encoder import HashingEncoder, Vectors
from dreamgym.replay.indexing import drop_indexes
from dreamgym.replay.partitions import partition_name
from dreamgym.replay.reading import read_episode
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.store import ReplayStore
from dreamgym.v1 import replay_pb2 as pb
from dreamgym.v1 import replay_pb2_grpc
from dreamgym.wire.channel import open_channel

SEEDS = Path("examples/household/seeds.jsonl.gz")
ENVIRONMENT = "bench"
TOP_K = 4
BATCH_EPISODES = 200
_NUMBER = re.compile(r"\b\d+\b")


class TimedEncoder(HashingEncoder):
    """The default encoder, with the time that it takes: storing is measured without it."""

    seconds = 0.0

    def encode(self, texts: Sequence[str]) -> Vectors:
        started = time.perf_counter()
        vectors = super().encode(texts)
        self.seconds += time.perf_counter() - started
        return vectors


class Rows:
    """Endless episodes of the example's wording, each with numbers of its own."""

    def __init__(self, seed: int) -> None:
        with gzip.open(SEEDS, "rt", encoding="utf-8") as lines:
            self._episodes = [json.loads(line) for line in lines]
        self._rng = random.Random(seed)
        self._made = 0

    def episodes(self, transitions: int) -> Iterator[pb.StoredEpisode]:
        """Episodes until there are about so many transitions."""
        while transitions > 0:
            record = self._rng.choice(self._episodes)
            numbers = {str(n): str(self._rng.randint(1, 40)) for n in range(40)}
            states = [record["initial_state"], *(step["state"] for step in record["steps"])]
            self._made += 1
            yield pb.StoredEpisode(
                episode_id=f"e{self._made}",
                environment_id=ENVIRONMENT,
                task_id=record["task_id"],
                instruction=record["instruction"],
                source=pb.SOURCE_SEED,
                split="train",
                termination=record["termination"],
                success=record["success"],
                transitions=[
                    pb.StoredTransition(
                        step=number,
                        state=_renumbered(states[number], numbers),
                        action=_renumbered(step["action"], numbers),
                        next_state=_renumbered(step["state"], numbers),
                        confidence=1.0,
                        valid_action=step["valid"],
                    )
                    for number, step in enumerate(record["steps"])
                ],
            )
            transitions -= len(record["steps"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="rows, ascending")
    parser.add_argument("--queries", type=int, default=300)
    arguments = parser.parse_args()
    given = f"--sizes {' '.join(map(str, arguments.sizes))} --queries {arguments.queries}"
    with tempfile.TemporaryDirectory(prefix="dreamgym-replay-") as folder:
        state = Path(folder)
        postgres = EmbeddedPostgres(state, quick=True)
        with postgres:
            postgres.ensure_database("dreamgym")
            url = postgres.url("dreamgym")
            migrate(url, find_alembic_ini(), state / "alembic.log")
            settings = ReplaySettings(
                database_url=url,
                service_token=SecretStr(secrets.token_hex(16)),
                replay_address=f"127.0.0.1:{choose_port()}",
            )
            with _served(settings):
                metrics = asyncio.run(_measure(settings, arguments.sizes, arguments.queries))
    print(write_results("replay", f'make bench-replay REPLAY="{given}"', metrics))


@contextmanager
def _served(settings: ReplaySettings) -> Iterator[None]:
    """The service in a process of its own."""
    environment = {
        **os.environ,
        "DREAMGYM_DATABASE_URL": settings.database_url,
        "DREAMGYM_SERVICE_TOKEN": settings.service_token.get_secret_value(),
        "DREAMGYM_REPLAY_ADDRESS": settings.replay_address,
        "DREAMGYM_LOG_LEVEL": "WARNING",
    }
    server = subprocess.Popen([sys.executable, "-m", "dreamgym.replay.server"], env=environment)
    try:
        yield
    finally:
        server.terminate()
        server.wait(30)


async def _measure(settings: ReplaySettings, sizes: Sequence[int], queries: int) -> list[Metric]:
    encoder = TimedEncoder()
    store = ReplayStore(settings, Embedder(encoder, 0))
    engine = open_engine(settings.model_copy(update={"replay_statement_deadline_s": 3600.0}))
    rows, held = Rows(seed=1), 0
    metrics: list[Metric] = []
    channel = open_channel(settings.replay_address, settings)
    try:
        await asyncio.wait_for(channel.channel_ready(), 60)
        stub = replay_pb2_grpc.ReplayStub(channel)
        for size in sizes:
            loaded, seconds = await _bulk(store, rows, size - held, encoder)
            held += loaded
            name = _name(size)
            goal = ("20000 rows/s", loaded / seconds >= 20_000) if size == sizes[-1] else (None, None)
            metrics.append(_said(f"bulk_rows_per_s_{name}", loaded / seconds, "rows/s", n=loaded, goal=goal))
            started = time.perf_counter()
            await store.finish_append([ENVIRONMENT])
            await store.indexer.idle()
            metrics.append(_said(f"index_s_{name}", time.perf_counter() - started, "s", n=held))
            metrics += await _search(stub, engine, name, queries)
            # The next load is a bulk load again: into a table without indexes, as an import into a new environment is.
            if size != sizes[-1]:
                async with engine.begin() as connection:
                    await drop_indexes(connection, partition_name(ENVIRONMENT))
                store.indexer.forget(ENVIRONMENT)
        metrics.append(await _live(stub, rows))
    finally:
        await channel.close(None)
        await store.close()
        await engine.dispose()
    return metrics


async def _bulk(store: ReplayStore, rows: Rows, wanted: int, encoder: TimedEncoder) -> tuple[int, float]:
    """Read messages from bytes, check and store them; answers transitions and seconds, those of the encoder left out."""
    loaded, seconds = 0, 0.0
    waiting: list[bytes] = []

    async def flush() -> None:
        nonlocal loaded, seconds
        before, started = encoder.seconds, time.perf_counter()
        offers = [Offer(read_episode(pb.StoredEpisode.FromString(one), store.settings)) for one in waiting]
        stored = await store.append(offers)
        seconds += time.perf_counter() - started - (encoder.seconds - before)
        loaded += stored.transitions
        waiting.clear()

    for episode in rows.episodes(wanted):
        waiting.append(episode.SerializeToString())
        if len(waiting) == BATCH_EPISODES:
            await flush()
    await flush()
    return loaded, seconds


async def _search(stub: replay_pb2_grpc.ReplayAsyncStub, engine: AsyncEngine, name: str, queries: int) -> list[Metric]:
    """Latency of single queries through gRPC, and recall against an exact scan."""
    asked = [
        pb.SearchQuery(state=step.state, action=step.action)
        for episode in Rows(seed=2).episodes(40 * queries)
        for step in episode.transitions[len(episode.transitions) // 2 :][:1]
    ][:queries]
    seconds, found = [], []
    for warm_up in (True, False):
        for query in asked[: 20 if warm_up else None]:
            request = pb.SearchRequest(environment_id=ENVIRONMENT, queries=[query], top_k=TOP_K)
            started = time.perf_counter()
            answer = await stub.Search(request, timeout=60)
            if not warm_up:
                seconds.append(time.perf_counter() - started)
                found.append([1.0 - hit.similarity for hit in answer.results[0].hits])
    vectors = await Embedder(HashingEncoder(), 0).embed([(query.state, query.action) for query in asked])
    hits = 0
    async with engine.connect() as connection:
        for vector, distances in zip(vectors, found, strict=True):
            furthest = await _exact(connection, vector_literal(vector))
            hits += sum(distance <= furthest + 1e-5 for distance in distances)
    total = TOP_K * len(asked)
    recall = wilson(hits, total)
    milliseconds = [1e3 * one for one in seconds]
    p99 = float(np.percentile(milliseconds, 99))
    large = name == "1m"
    return [
        _said(f"search_p50_ms_{name}", statistics.median(milliseconds), "ms", n=len(asked)),
        _said(f"search_p99_ms_{name}", p99, "ms", n=len(asked), goal=("5 ms", p99 <= 5) if large else (None, None)),
        _said(
            f"recall_{name}",
            hits / total,
            "share",
            n=total,
            bounds=(recall.low, recall.high),
            goal=("0.98", hits / total >= 0.98) if large else (None, None),
        ),
    ]


async def _exact(connection: AsyncConnection, vector: str) -> float:
    """The distance of the fourth nearest row, by a scan that no index serves."""
    distances = await connection.scalars(
        text(
            f"SELECT (embedding <=> CAST(:vector AS halfvec)) + 0.0 AS distance FROM replay.{partition_name(ENVIRONMENT)}"
            f" ORDER BY distance LIMIT {TOP_K}"
        ),
        {"vector": vector},
    )
    return float(list(distances)[-1])


async def _live(stub: replay_pb2_grpc.ReplayAsyncStub, rows: Rows) -> Metric:
    """Episodes as a running job stores them: through gRPC, into the indexed environment, 64 at a time."""
    stored, started = 0, time.perf_counter()
    while time.perf_counter() - started < 20.0:
        requests = [pb.AppendRequest(episode=episode) for episode in list(rows.episodes(64 * 12))[:64]]
        stored += (await stub.Append(iter(requests), timeout=60)).transitions_stored
    return _said("append_rows_per_s", stored / (time.perf_counter() - started), "rows/s", n=stored)


def _renumbered(words: str, numbers: dict[str, str]) -> str:
    return _NUMBER.sub(lambda found: numbers.get(found.group(), found.group()), words)


def _name(size: int) -> str:
    return f"{size // 1_000_000}m" if size % 1_000_000 == 0 else f"{size // 1000}k"


def _said(
    metric: str,
    value: float,
    unit: str,
    *,
    n: int,
    bounds: tuple[float | None, float | None] = (None, None),
    goal: tuple[str | None, bool | None] = (None, None),
) -> Metric:
    made: dict[str, Any] = {"low": bounds[0], "high": bounds[1], "n": n, "goal": goal[0], "holds": goal[1]}
    print(f"{metric}: {value:.4g} {unit} (n={n})", flush=True)
    return Metric(metric, value, unit, **made)


if __name__ == "__main__":
    main()
