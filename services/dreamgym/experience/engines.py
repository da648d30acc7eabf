"""Experience models by version name, loaded on first use and kept while they are used."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dreamgym.core.errors import CapacityError, EngineError, InvalidInputError, ModelMissingError
from dreamgym.experience.cards import ModelCard, load_card, load_worlds
from dreamgym.experience.settings import ExperienceSettings
from dreamgym.experience.worlds import WorldBook
from dreamgym.inference.engine import Engine
from dreamgym.inference.model_store import ModelStore, refuse_unsafe_weights

log = logging.getLogger(__name__)

EngineFactory = Callable[[Path, ModelCard, str], Engine]
"""Builds an engine from a model's folder, card and version; may block, it runs in a thread."""


@dataclass(frozen=True)
class LoadedModel:
    """An experience model ready to play."""

    version: str
    card: ModelCard
    worlds: WorldBook
    engine: Engine
    _pieces: dict[int, str] = field(default_factory=dict, repr=False, compare=False)

    def piece(self, token: int) -> str:
        """The text of one token; remembered, because every step asks for all of its tokens."""
        if token not in self._pieces:
            self._pieces[token] = self.engine.decode([token])
        return self._pieces[token]


class EnginePool:
    """At most `limit` loaded models; one that an episode uses is never dropped."""

    def __init__(self, store: ModelStore, factories: Mapping[str, EngineFactory], limit: int = 2) -> None:
        self._store = store
        self._factories = factories
        self._limit = limit
        self._models: OrderedDict[str, LoadedModel] = OrderedDict()
        self._uses: dict[str, int] = {}
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def lease(self, version: str) -> AsyncIterator[LoadedModel]:
        """The model of a version, loaded if need be, and held until the block ends.

        Raises ModelMissingError if there is no such version, CapacityError if every loaded model is in use.
        """
        model = await self._acquire(version)
        try:
            yield model
        finally:
            self._uses[version] -= 1

    @property
    def loaded(self) -> tuple[LoadedModel, ...]:
        """Loaded models, the most recently used last."""
        return tuple(self._models.values())

    async def close(self) -> None:
        for model in self._models.values():
            await model.engine.close()
        self._models.clear()

    async def _acquire(self, version: str) -> LoadedModel:
        if not version or "/" in version or version.startswith("."):
            raise InvalidInputError(
                f"{version!r} is no model version.", remedy="Set experience_model to a version name."
            )
        if version not in self._models:
            async with self._loading:
                if version not in self._models:
                    published = self._store.published(f"models/{version}")
                    await self._make_room()
                    self._models[version] = await asyncio.to_thread(self._load, published.path, version)
        self._models.move_to_end(version)
        self._uses[version] = self._uses.get(version, 0) + 1
        return self._models[version]

    async def _make_room(self) -> None:
        while len(self._models) >= self._limit:
            idle = next((version for version in self._models if not self._uses.get(version)), None)
            if idle is None:
                raise CapacityError(
                    f"All {self._limit} loaded experience models are in use: {', '.join(self._models)}.",
                    remedy="Wait for their episodes to end, or raise DREAMGYM_EXPERIENCE_ENGINES.",
                )
            model = self._models.pop(idle)
            await model.engine.close()
            log.info("model unloaded", extra={"model_version": idle})

    def _load(self, path: Path, version: str) -> LoadedModel:
        refuse_unsafe_weights(path)
        card = load_card(path)
        factory = self._factories.get(card.engine)
        if factory is None:
            raise ModelMissingError(
                f"The model {version} asks for the engine {card.engine!r}.",
                remedy=f"This service has: {', '.join(sorted(self._factories))}.",
            )
        model = LoadedModel(version, card, WorldBook(load_worlds(path)), factory(path, card, version))
        log.info("model loaded", extra={"model_version": version, "engine": card.engine})
        return model


def default_factories(settings: ExperienceSettings) -> dict[str, EngineFactory]:
    """The engines that a deployed service offers; what they need is imported on first use."""

    def local(path: Path, card: ModelCard, version: str) -> Engine:
        try:
            module = importlib.import_module("dreamgym.inference.local")
        except ImportError as error:
            raise EngineError(
                f"The local engine cannot be loaded: {error}.", remedy="Install it: pip install 'dreamgym[trainer]'."
            ) from error
        engine: Engine = module.LocalEngine(
            path,
            version,
            slots=settings.experience_slots,
            threads=settings.experience_threads,
            remembered=settings.experience_remembered,
        )
        return engine

    def vllm(path: Path, card: ModelCard, version: str) -> Engine:
        from dreamgym.inference.vllm import VllmEngine

        if not settings.vllm_url:
            raise EngineError(
                f"The model {version} is served by vLLM, but no server is configured.",
                remedy="Set DREAMGYM_VLLM_URL to its root, for example http://127.0.0.1:8000.",
            )
        tokenizer = settings.vllm_tokenizer or (path if (path / "tokenizer.json").exists() else None)
        return VllmEngine(settings.vllm_url, version, context_window=card.context_window, tokenizer=tokenizer)

    return {"local": local, "vllm": vllm}
