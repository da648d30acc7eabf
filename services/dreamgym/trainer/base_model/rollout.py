"""Whole episodes played by the base model as policy in fresh procedural worlds."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer

from dreamgym.trainer.base_model.drawing import draw_world
from dreamgym.trainer.base_model.evaluate import HELD_OUT_SEEDS
from dreamgym.trainer.base_model.phrases import COMMANDS
from dreamgym.trainer.base_model.wording import draw_wording
from dreamgym.trainer.base_model.worlds import Action, World

STEP_LIMIT = 30
ACTION_TOKENS = 14


@dataclass
class Episode:
    """A world being played: its transcript so far and what became of it."""

    world: World
    transcript: str
    commands: dict[str, Action]
    flag: str = "continue"
    actions: int = 0
    refused: int = 0
    texts: list[str] = field(default_factory=list)


def commands_of(world: World) -> dict[str, Action]:
    """Every well-formed command on this world's names, by its text."""
    things = sorted({thing for listed in world.contents.values() for thing in listed})
    verbs = [t.verb for t in world.wording.transforms]
    found: dict[str, Action] = {}
    for kind in COMMANDS:
        for place in world.places:
            for thing in [*things, place]:
                for verb in verbs if kind == "transform" else [""]:
                    action = Action(kind, thing=thing, place=place, verb=verb)
                    found.setdefault(world.render(action), action)
    return found


def play_batch(model: Any, tokenizer: Tokenizer, seed: int, count: int, temperature: float = 0.0) -> list[Episode]:
    """Let the model play `count` held-out worlds side by side (greedily at temperature 0)."""
    rng = random.Random(HELD_OUT_SEEDS + 500_000 + seed)
    episodes = []
    for _ in range(count):
        world = draw_world(rng, draw_wording(rng))
        head = f"Task: {world.instruction}\n{world.initial_state()}\n>"
        episodes.append(Episode(world, head, commands_of(world)))
    for _ in range(STEP_LIMIT):
        live = [episode for episode in episodes if episode.flag == "continue"]
        if not live:
            break
        for episode, text in zip(live, _next_actions(model, tokenizer, live, temperature), strict=True):
            action = episode.commands.get(text, Action("malformed", text=text))
            if "{p}" not in episode.world.wording.commands.get(action.kind, "{p}"):
                action = Action(action.kind, action.thing, episode.world.at, action.verb)
            outcome = episode.world.step(action)
            episode.actions += 1
            episode.refused += not outcome.valid
            episode.texts.append(text)
            episode.flag = outcome.flag
            episode.transcript += f" {text}\n{outcome.state}\n>"
    return episodes


def summary(episodes: list[Episode]) -> dict[str, float]:
    """Success by task family and by whether the world tells its commands, and the share of refused actions."""
    won: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        told = "told" if episode.world.wording.tells_commands else "untold"
        for key in ("all", episode.world.goal.family, f"commands_{told}"):
            won[f"success/{key}"].append(episode.flag == "success")
    result = {name: round(sum(values) / len(values), 3) for name, values in sorted(won.items())}
    result["refused"] = round(sum(e.refused for e in episodes) / max(1, sum(e.actions for e in episodes)), 3)
    return result | {"episodes": len(episodes)}


@torch.no_grad()
def _next_actions(model: Any, tokenizer: Tokenizer, live: list[Episode], temperature: float) -> list[str]:
    encoded = [tokenizer.encode(episode.transcript).ids for episode in live]
    width = max(len(ids) for ids in encoded)
    ids = torch.tensor([[0] * (width - len(row)) + row for row in encoded])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in encoded])
    newline = tokenizer.token_to_id("Ċ")
    options: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=ACTION_TOKENS,
            eos_token_id=newline,
            pad_token_id=0,
            **options,
        )
    return [tokenizer.decode(row[width:].tolist()).split("\n")[0].strip() for row in made]
