"""How good the list of open actions is: `make bench-choices`. Replays the example seeds in the real ALFWorld engine.

Of each accepted action that was recorded: was it on the list? Of each listed action: does the engine admit it, and of those
that it admits, how many are listed? No model takes part.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.results_file import Metric, write_results
from dreamgym.bridge.adapters.alfworld_engine import AlfworldAdapter
from dreamgym.cli.demo_pipeline import ACTION_FORMAT
from dreamgym.core.action_choices import ActionChooser, ActionRules, learn_rules
from dreamgym.core.consistency import refusals_of
from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.statistics import wilson

SEEDS = Path("examples/household/seeds.jsonl.gz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replayed", type=int, default=100, help="episodes to replay in the engine")
    replayed = parser.parse_args().replayed
    records = list(_records())
    episodes = [_episode(record) for record in records]
    rules = learn_rules(ACTION_FORMAT, episodes, refusals_of(episodes))
    assert rules is not None, "the example seeds support choosing"
    metrics = [*_coverage(rules, episodes), *_agreement(rules, records[:replayed])]
    for metric in metrics:
        print(f"{metric.metric}: {metric.value:.3f} (n={metric.n})")
    print(write_results("choices", "make bench-choices", metrics))


def _records() -> Iterator[dict[str, Any]]:
    with gzip.open(SEEDS, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _episode(record: dict[str, Any]) -> Episode:
    states = [record["initial_state"], *(step["state"] for step in record["steps"])]
    transitions = tuple(
        Transition(state, step["action"], step["state"], valid_action=step["valid"])
        for state, step in zip(states, record["steps"], strict=False)
    )
    task = Task(record["task_id"], record["instruction"], record["initial_state"])
    return Episode(record["task_id"], task, Source.SEED, transitions, TerminationReason(record["termination"]))


def _coverage(rules: ActionRules, episodes: list[Episode]) -> list[Metric]:
    listed = accepted = offered = steps = 0
    for episode in episodes:
        chooser = ActionChooser(rules, episode.task.initial_state)
        for step in episode.transitions:
            choices = chooser.choices()
            offered, steps = offered + len(choices), steps + 1
            accepted += step.valid_action
            listed += step.valid_action and step.action in choices
            chooser.follow(step.action, step.next_state)
    return [
        _share("accepted_actions_listed", listed, accepted),
        Metric("choices_per_step", offered / steps, "actions", n=steps),
    ]


def _agreement(rules: ActionRules, records: list[dict[str, Any]]) -> list[Metric]:
    both = offered = admitted = 0
    adapter = AlfworldAdapter()
    try:
        for record in records:
            state = adapter.reset(record["metadata"], 0)
            chooser = ActionChooser(rules, state.state)
            for step in record["steps"]:
                choices, admissible = set(chooser.choices()), set(state.admissible_actions)
                both += len(choices & admissible)
                offered, admitted = offered + len(choices), admitted + len(admissible)
                state = adapter.step(step["action"])
                chooser.follow(step["action"], state.state)
    finally:
        adapter.close()
    return [_share("listed_actions_admitted", both, offered), _share("admitted_actions_listed", both, admitted)]


def _share(name: str, hits: int, of: int) -> Metric:
    interval = wilson(hits, of)
    return Metric(name, interval.value, "share", low=interval.low, high=interval.high, n=of)


if __name__ == "__main__":
    main()
