"""What every stage needs: the job's session, channels to the other services, the model store, and model resolution."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import torch

import dreamgym
from dreamgym.core.action_choices import ActionRules
from dreamgym.core.action_vocabulary import OPEN, format_tokens
from dreamgym.core.episodes import Episode, Source
from dreamgym.core.errors import DreamGymError, InvalidInputError, UnavailableError
from dreamgym.core.pretrained import SMOLLM2
from dreamgym.inference.local import LocalEngine
from dreamgym.inference.model_store import ModelStore, Published
from dreamgym.trainer.action_space import ActionSpace
from dreamgym.trainer.model_files import base_path, hash_of, publish_model, read_card
from dreamgym.trainer.policy_data import pieces_of
from dreamgym.trainer.pretrained_base import smollm2_base
from dreamgym.trainer.session import JobSession
from dreamgym.trainer.settings import TrainerSettings
from dreamgym.v1 import jobs_pb2, replay_pb2, replay_pb2_grpc
from dreamgym.wire.channel import open_channel
from dreamgym.wire.convert import dump_json, episode_from_proto, source_to_proto
from dreamgym.wire.errors import error_from_rpc

T = TypeVar("T")


@dataclass(frozen=True)
class ModelReference:
    """A resolved model: its version name and the folder of its files."""

    version: str
    path: Path


@dataclass
class StageContext:
    """One stage of one attempt. `results` holds the finished stages' results, by index."""

    session: JobSession
    settings: TrainerSettings
    store: ModelStore
    stage: int
    environment: jobs_pb2.EnvironmentRecord
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    progress_span: tuple[float, float] = (0.0, 1.0)
    """The part of the stage that `progress` is told of, for a stage of several parts."""
    _channels: dict[str, grpc.aio.Channel] = field(default_factory=dict)

    @property
    def environment_id(self) -> str:
        return self.session.environment_id

    @property
    def check(self) -> Callable[[], None]:
        return self.session.check

    def metric(self, name: str, step: int, value: float) -> None:
        self.session.metric(self.stage, name, step, value)

    def progress(self, share: float) -> None:
        """How much of the stage (of its part, see `progress_span`) is done, 0 to 1."""
        first, last = self.progress_span
        done = first + (last - first) * min(1.0, share)
        self.metric("progress", round(1e6 * done), done)  # the newest is the one of the highest step

    def channel(self, service: str) -> grpc.aio.Channel:
        """The channel to `replay`, `experience`, `curriculum` or `bridge`, opened once."""
        if service not in self._channels:
            address = getattr(self.settings, f"{service}_address")
            self._channels[service] = open_channel(address, self.settings)
        return self._channels[service]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)

    async def resolve(self, name: str, role: str) -> ModelReference:
        """`latest`, `base`, for a policy `smollm2-135m`, or a model's id or version.

        Raises ModelMissingError or NotFoundError if there is none, and says which stage would make one.
        """
        if name == "base":
            return ModelReference("base", base_path())
        if name == SMOLLM2 and role == "policy":
            seeds = await self.episodes(Source.SEED, splits=("train",))
            tasks = await self.session.tasks("train")
            pieces = pieces_of(seeds, tasks, self.environment.action_format)
            return self._reference(await self.in_thread(smollm2_base, self.store, self.environment_id, pieces))
        if name == "latest":
            made = [r["model"]["version"] for _, r in sorted(self.results.items()) if r.get("model_role") == role]
            if made:
                return self._published(made[-1])
            try:
                model = await self.session.newest_model(role)
            except DreamGymError as error:
                stage = "train_experience_model" if role == "experience" else "train_policy"
                error.remedy = error.remedy or f"Run a {stage} stage first, or name a model version."
                raise
        else:
            model = await self.session.model(name)
        if model.role != role:
            raise InvalidInputError(f"The model {name!r} is a {model.role} model.", remedy=f"Name a {role} model here.")
        return self._published(model.version)

    def _published(self, version: str) -> ModelReference:
        return self._reference(self.store.published(f"models/{version}"))

    def _reference(self, published: Published) -> ModelReference:
        return ModelReference(published.location.removeprefix("models/"), published.path)

    async def publish(
        self,
        role: str,
        model: Any,
        parent: ModelReference,
        *,
        card: dict[str, Any] | None = None,
        manifest: dict[str, Any],
        worlds: list[Any] | None = None,
    ) -> dict[str, Any]:
        """Publish and register a trained model; answers the part of the stage's result that names it."""
        version = f"{role}-{self.session.job_id.removeprefix('job_')[:12]}-{self.stage}"
        full_card = {**read_card(parent.path), **(card or {}), "role": role, "version": version, "engine": "local"}
        full_manifest = {
            "code_version": dreamgym.__version__,
            "job": self.session.job_id,
            "attempt": self.session.attempt,
            "stage": self.stage,
            "seed": self.session.seed,
            "parent": parent.version,
            "torch": torch.__version__,
            "prompt_layout": "plain",
            **manifest,
        }
        published: Published = await asyncio.to_thread(
            publish_model, self.store, version, model, parent.path, full_card, worlds or []
        )
        record = jobs_pb2.Model(
            environment_id=self.environment_id,
            role=role,
            version=version,
            location=published.location,
            sha256=published.sha256,
            manifest=dump_json(full_manifest),
            job_id=self.session.job_id,
        )
        id_ = await self.session.register_model(record)
        named = {"id": id_, "version": version, "location": published.location, "size_bytes": published.size_bytes}
        self.session.event("model.published", stage=self.stage, role=role, **named)
        return {"model": named, "model_role": role}

    async def episodes(
        self, *sources: Source, splits: tuple[str, ...] = (), limit: int = 0, cursor: int = 0
    ) -> list[Episode]:
        """Stored episodes in the order in which they were stored."""
        request = replay_pb2.ListEpisodesRequest(
            environment_id=self.environment_id,
            sources=[source_to_proto(source) for source in sources],
            splits=splits,
            limit=limit,
            cursor=cursor,
        )
        stub = replay_pb2_grpc.ReplayStub(self.channel("replay"))
        try:
            return [episode_from_proto(stored) async for stored in stub.ListEpisodes(request, timeout=300)]
        except grpc.RpcError as error:
            raise error_from_rpc(error, service="replay") from error

    async def patiently(self, service: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make an idempotent call; a service that restarts is waited for. Raises the typed error of any other failure."""
        deadline = time.monotonic() + self.settings.call_deadline_s
        while True:
            try:
                return await call()
            except grpc.RpcError as error:
                typed = error_from_rpc(error, service=service)
                if not isinstance(typed, UnavailableError) or time.monotonic() > deadline:
                    raise typed from error
                self.check()
                await asyncio.sleep(0.5)

    async def replay_cursor(self) -> int:
        """Newest stored transition: retrieval within a stage sees the store as of now."""
        stub = replay_pb2_grpc.ReplayStub(self.channel("replay"))
        request = replay_pb2.StatisticsRequest(environment_id=self.environment_id)
        try:
            answer = await stub.Statistics(request, timeout=self.settings.call_deadline_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, service="replay") from error
        return int(answer.cursor)

    def action_space(
        self, kind: str, rules: ActionRules | None, encode: Callable[[str], Sequence[int]], size: int
    ) -> ActionSpace | None:
        """What actions of a policy of this kind (`choices`, `seen` or `open`) may consist of in this environment."""
        if kind == OPEN or not self.environment.action_format:
            return None
        return ActionSpace(format_tokens(self.environment.action_format, encode), size, rules)

    def policy_space(self, policy: ModelReference, engine: LocalEngine) -> ActionSpace | None:
        """The same, as the policy was trained (its card says so)."""
        card = read_card(policy.path)
        rules = ActionRules.model_validate(card["action_rules"]) if card.get("action_rules") else None
        return self.action_space(card.get("action_vocabulary", OPEN), rules, engine.encode, engine.vocabulary_size)

    @contextmanager
    def threads(self) -> Iterator[None]:
        """All trainer threads for an update: nothing else of ours computes meanwhile."""
        torch.set_num_threads(self.settings.trainer_threads)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a computation beside the event loop, so that heartbeats go on."""

        def run() -> T:
            with self.threads():
                return function(*args)

        return await asyncio.to_thread(run)


class Stopwatch:
    """Seconds since the start; a stage that resumes adds what earlier attempts took."""

    def __init__(self, already: float = 0.0) -> None:
        self.already = already
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.already + time.monotonic() - self.started

    def exceeded(self, limit: float | None, ahead: float = 0.0) -> bool:
        """Whether `limit` seconds will have passed `ahead` seconds from now."""
        return limit is not None and self.seconds + ahead > limit


__all__ = ["ModelReference", "StageContext", "Stopwatch", "hash_of"]
