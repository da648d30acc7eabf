from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dreamgym.core.errors import CapacityError, InvalidInputError, ModelMissingError
from dreamgym.experience.cards import ModelCard
from dreamgym.experience.engines import EnginePool
from dreamgym.inference.model_store import ModelStore
from dreamgym.inference.scripted import ScriptedEngine

Publish = Callable[..., ModelStore]


class Factory:
    def __init__(self) -> None:
        self.built: list[str] = []

    def __call__(self, path: Path, card: ModelCard, version: str) -> ScriptedEngine:
        self.built.append(version)
        return ScriptedEngine(lambda prompt, seed: "", model_version=version)


async def use(pool: EnginePool, version: str) -> None:
    async with pool.lease(version):
        pass


async def test_the_version_unused_for_longest_leaves_first(publish: Publish) -> None:
    factory = Factory()
    pool = EnginePool(publish("a", "b", "c"), {"scripted": factory}, limit=2)
    for version in ("a", "b", "a", "c", "a"):
        await use(pool, version)
    assert factory.built == ["a", "b", "c"]
    await use(pool, "b")
    assert factory.built == ["a", "b", "c", "b"]


async def test_a_version_in_use_is_never_dropped(publish: Publish) -> None:
    pool = EnginePool(publish("a", "b"), {"scripted": Factory()}, limit=1)
    async with pool.lease("a") as model:
        with pytest.raises(CapacityError):
            await use(pool, "b")
        assert model.engine.encode("x") == [120]
    await use(pool, "b")


async def test_a_missing_version_or_unknown_engine_is_a_typed_error(publish: Publish) -> None:
    pool = EnginePool(publish("a", engine="warp"), {"scripted": Factory()}, limit=1)
    with pytest.raises(ModelMissingError, match="warp"):
        await use(pool, "a")
    with pytest.raises(ModelMissingError):
        await use(pool, "b")
    with pytest.raises(InvalidInputError):
        await use(pool, "../a")


async def test_a_faulty_card_or_world_names_the_fault(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    with store.writing("models/policy") as folder:
        (folder / "dreamgym.json").write_text('{"role": "policy", "engine": "scripted"}')
    with store.writing("models/torn") as folder:
        (folder / "dreamgym.json").write_text('{"engine": "scripted"}')
        (folder / "worlds.jsonl").write_text(
            '{"task_id": "a", "instruction": "x", "initial_state": "y"}\n{"sheet": 1}\n'
        )
    pool = EnginePool(store, {"scripted": Factory()})
    with pytest.raises(ModelMissingError, match="policy model"):
        await use(pool, "policy")
    with pytest.raises(ModelMissingError, match="line 2"):
        await use(pool, "torn")
