"""A scripted household: the engine plays by rules read from the prompt's own world sheet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import pytest

from dreamgym.core.episodes import Task
from dreamgym.core.world_sheet import parse
from dreamgym.experience.cards import ModelCard, World
from dreamgym.experience.engines import LoadedModel
from dreamgym.experience.retrieval import Hit, RetrievalScope
from dreamgym.experience.worlds import WorldBook
from dreamgym.inference.model_store import ModelStore
from dreamgym.inference.scripted import ScriptedEngine

Script = Callable[[str, int], str]

ROOM = "You are in a room. You see a desk 1, a shelf 1, and a shelf 2."
KITCHEN = "You are in a kitchen. You see a counter 1, a fridge 1, and a table 1."
CRITERION = {"regex": {"over": "transcript", "pattern": r"(?m)^You move the mug \d+ to the desk \d+\."}}


def household(prompt: str, seed: int) -> str:
    """Arrive, take and move by the sheet; everything else is refused."""
    lines = prompt.split("\n")
    sheet = parse(next((line.removeprefix("World: ") for line in lines if line.startswith("World: ")), ""))
    action = lines[-2].removeprefix("> ")
    held = [line.split()[5] + " " + line.split()[6] for line in lines if line.startswith("= You pick up the")]
    words = action.split()
    if action.startswith("go to ") and (place := action.removeprefix("go to ")) in sheet:
        listed = ", ".join(f"a {thing}" for thing in sheet[place]) or "nothing"
        return f" valid; at {place}.\n= You arrive at {place}. On the {place}, you see {listed}.\n# continue\n"
    if (
        words[:1] == ["take"]
        and len(words) == 6
        and f"{words[1]} {words[2]}" in sheet.get(f"{words[4]} {words[5]}", [])
    ):
        return f" valid.\n= You pick up the {words[1]} {words[2]} from the {words[4]} {words[5]}.\n# success\n"
    if words[:1] == ["move"] and len(words) == 6:
        return f" valid.\n= You move the {words[1]} {words[2]} to the {words[4]} {words[5]}.\n# continue\n"
    return f" impossible: not a command {held[:0]}.\n= Nothing happens.\n# failure\n"


class NoRetrieval:
    """Finds nothing, and keeps what it was asked."""

    def __init__(self, hits: Sequence[Hit] = ()) -> None:
        self.hits = list(hits)
        self.asked: list[tuple[RetrievalScope, str, str]] = []

    async def similar(
        self, scope: RetrievalScope, state: str, action: str, *, exclude_episode_id: str = "", exclude_task_id: str = ""
    ) -> Sequence[Hit]:
        self.asked.append((scope, state, action))
        await asyncio.sleep(0)
        return self.hits[: scope.k]


@pytest.fixture
def worlds() -> list[World]:
    sheets = [
        ("mug-on-desk", "put a mug on desk", ROOM, "desk 1: pen 1; shelf 1: book 1, mug 1; shelf 2: nothing"),
        ("book-on-desk", "put a book on desk", ROOM, "desk 1: pen 1, vase 1; shelf 1: mug 2, mug 1; shelf 2: book 1"),
        ("pen-on-shelf", "put a pen on shelf", ROOM, "desk 1: pen 1, vase 1; shelf 1: book 1; shelf 2: nothing"),
        ("cup-on-table", "put a cup on table", KITCHEN, "counter 1: cup 1, knife 1; fridge 1: egg 1; table 1: cup 2"),
    ]
    return [World(task, instruction, state, parse(sheet)) for task, instruction, state, sheet in sheets]


@pytest.fixture
def mug_task() -> Task:
    return Task("mug-on-desk", "put a mug on desk", ROOM, CRITERION)


@pytest.fixture
def make_model(worlds: list[World]) -> Callable[..., LoadedModel]:
    def make(script: Script = household, **card: object) -> LoadedModel:
        settings = {"engine": "scripted", "context_window": 65536, "refusals": ("Nothing happens.",), **card}
        engine = ScriptedEngine(script, model_version="experience-1")
        return LoadedModel("experience-1", ModelCard.model_validate(settings), WorldBook(worlds), engine)

    return make


@pytest.fixture
def retriever() -> NoRetrieval:
    return NoRetrieval()


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., ModelStore]:
    def write(*versions: str, **card: object) -> ModelStore:
        store = ModelStore(tmp_path)
        for version in versions:
            with store.writing(f"models/{version}") as folder:
                (folder / "dreamgym.json").write_bytes(orjson.dumps({"engine": "scripted", **card}))
                (folder / "worlds.jsonl").write_bytes(b"")
        return store

    return write
