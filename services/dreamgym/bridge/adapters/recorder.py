"""Recording episodes of the real ALFWorld engine as native JSON lines, one episode a line.

Command line: `python -m dreamgym.bridge.adapters.recorder --out episodes.jsonl.gz --episodes 450 --games 150`.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast, get_args

from dreamgym.bridge.adapters.alfworld_engine import AlfworldAdapter
from dreamgym.bridge.adapters.household_behaviours import BEHAVIOURS, Behaviour, Noise, new_player
from dreamgym.bridge.adapters.household_criteria import success_criterion
from dreamgym.bridge.adapters.household_games import SPLIT_PLANS, GameSpec, Rooms, Split, generate_games

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to record."""

    spec: GameSpec
    behaviour: Behaviour
    seed: int
    max_steps: int
    noise: Noise


def record_episode(adapter: AlfworldAdapter, job: Job) -> Record:
    """Play one episode in the real engine and return its record. `steps[i].state` is what followed the action."""
    rng = random.Random(f"episode:{job.spec.game_id}:{job.behaviour}:{job.seed}")
    task = {"game": job.spec.to_json(), "expert": job.behaviour == "expert"}
    start = state = adapter.reset(task, job.seed)
    player = new_player(job.behaviour, job.spec, start, rng, job.noise)
    steps: list[Record] = []
    while not state.done and len(steps) < job.max_steps:
        action = player.act(state)
        state = adapter.step(action)
        steps.append(
            {
                "action": action,
                "state": state.state,
                "reward": state.reward,
                "done": state.done,
                "success": state.success,
                "valid": state.valid_action,
            }
        )
    ending = "success" if state.success else "failure" if state.done else "step_limit"
    return {
        **task_record(job.spec, start.state),
        "behaviour": job.behaviour,
        "success": state.success,
        "termination": ending,
        "steps": steps,
    }


def task_record(spec: GameSpec, initial_state: str) -> Record:
    """The task of a game: all that a dream or a real episode of it needs to start."""
    return {
        "task_id": spec.game_id,
        "instruction": spec.instruction,
        "initial_state": initial_state,
        "criterion": success_criterion(spec),
        "metadata": {"game": spec.to_json(), "task_type": spec.task_type, "floor_plan": spec.floor_plan},
        "split": spec.split,
    }


def plan_jobs(
    games: Sequence[GameSpec],
    episodes: int,
    *,
    mix: Mapping[Behaviour, float],
    seed: int,
    max_steps: int,
    noise: Noise | None = None,
) -> list[Job]:
    """Share the episodes among games and behaviours: every game about as often, the behaviours in the asked mix."""
    rng = random.Random(f"recording:{seed}")
    total = sum(mix.values())
    behaviours: list[Behaviour] = [b for b, share in mix.items() for _ in range(round(episodes * share / total))]
    behaviours = (behaviours + [max(mix, key=lambda b: mix[b])] * episodes)[:episodes]
    rng.shuffle(behaviours)
    return [
        Job(games[i % len(games)], behaviour, rng.randrange(2**31), max_steps, noise or Noise())
        for i, behaviour in enumerate(behaviours)
    ]


def record(jobs: Sequence[Job], *, workers: int) -> Iterator[Record]:
    """Play all jobs, grouped by game, on `workers` processes with one engine each."""
    by_game = sorted(range(len(jobs)), key=lambda i: jobs[i].spec.game_id)  # a worker keeps a game's translation
    if workers <= 1:
        adapter = AlfworldAdapter()
        try:
            yield from (record_episode(adapter, jobs[i]) for i in by_game)
        finally:
            adapter.close()
        return
    with multiprocessing.get_context("spawn").Pool(workers, initializer=_start_worker) as pool:
        yield from pool.imap(_work, (jobs[i] for i in by_game), chunksize=8)


def initial_states(games: Iterable[GameSpec]) -> Iterator[Record]:
    """The task record of each game, with the state that the real engine shows first."""
    adapter = AlfworldAdapter()
    try:
        for spec in games:
            yield task_record(spec, adapter.reset({"game": spec.to_json()}, 0).state)
    finally:
        adapter.close()


_worker_adapter: AlfworldAdapter | None = None


def _start_worker() -> None:
    global _worker_adapter
    _worker_adapter = AlfworldAdapter()


def _work(job: Job) -> Record:
    assert _worker_adapter is not None, "the pool's initializer builds the adapter"
    return record_episode(_worker_adapter, job)


def _open(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":  # no time stamp inside: the same recording gives the same bytes
        return io.TextIOWrapper(gzip.GzipFile(path, "wb", mtime=0), encoding="utf-8")
    return path.open("w", encoding="utf-8")


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dreamgym.bridge.adapters.recorder", description=__doc__)
    parser.add_argument("--out", type=Path, help="episodes, JSON lines; compressed if the name ends in .gz")
    parser.add_argument("--tasks", type=Path, help="also write one task record per game here")
    parser.add_argument("--episodes", type=int, default=450)
    parser.add_argument("--games", type=int, default=150)
    parser.add_argument("--split", choices=sorted(SPLIT_PLANS), default="train")
    parser.add_argument("--rooms", choices=get_args(Rooms), default="small")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes, one engine each")
    parser.add_argument("--max-steps", type=int, default=15)
    parser.add_argument("--planned", type=float, default=0.45, help="share of episodes by the searcher")
    parser.add_argument("--expert", type=float, default=0.0, help="share by ALFWorld's hand-coded expert")
    parser.add_argument("--noisy-expert", type=float, default=0.30, help="share by the searcher with noise")
    parser.add_argument("--random", type=float, default=0.25, help="share by random actions")
    parser.add_argument(
        "--wander", type=float, default=Noise().wander, help="noisy: chance of a random admissible action"
    )
    parser.add_argument("--refused", type=float, default=Noise().refused, help="chance of an action the engine refuses")
    parser.add_argument("--misread", type=float, default=Noise().misread, help="noisy: chance that the goal is misread")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Progress and success rates go to stderr."""
    asked = _arguments().parse_args(arguments)
    if asked.out is None and asked.tasks is None:
        _arguments().error("name --out, --tasks or both")
    games = list(generate_games(asked.games, seed=asked.seed, rooms=asked.rooms, split=cast("Split", asked.split)))
    if asked.tasks is not None:
        _write(asked.tasks, initial_states(games), len(games))
    if asked.out is None:
        return 0
    mix: dict[Behaviour, float] = {behaviour: getattr(asked, behaviour) for behaviour in BEHAVIOURS}
    noise = Noise(wander=asked.wander, refused=asked.refused, misread=asked.misread)
    jobs = plan_jobs(games, asked.episodes, mix=mix, seed=asked.seed, max_steps=asked.max_steps, noise=noise)
    _write(asked.out, record(jobs, workers=asked.workers), len(jobs))
    return 0


def _write(path: Path, records: Iterable[Record], total: int) -> None:
    played: Counter[tuple[str, str]] = Counter()
    won: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    with _open(path) as out:
        for number, line in enumerate(records, start=1):
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
            key = (str(line.get("behaviour", "")), str(line["metadata"]["task_type"]))
            played[key] += 1
            won[key] += bool(line.get("success"))
            if number % 50 == 0 or number == total:
                print(f"{path.name}: {number}/{total} in {time.monotonic() - began:.0f} s", file=sys.stderr)
    for behaviour, task_type in sorted(key for key in played if key[0]):
        key = (behaviour, task_type)
        print(f"  {behaviour:13}{task_type:32}{won[key]:4}/{played[key]}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
