"""Hands finished dreams to the replay store, where the environment takes them (`settings.admission`).

Retrieval within an iteration sees the store as of its start. The cursor that says so is in the checkpoint, and what an
interrupted attempt stored after it is removed: a resumed run then finds the neighbours that it would have found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dreamgym.core.environment_settings import settings_of
from dreamgym.core.episodes import Source
from dreamgym.trainer.rollout import PlayedEpisode
from dreamgym.trainer.stages.context import StageContext
from dreamgym.v1 import replay_pb2, replay_pb2_grpc
from dreamgym.wire.convert import episode_to_proto, load_json

_DELETED_AT_ONCE = 500


class Enrichment:
    """The dreams of one stage on their way to the store."""

    def __init__(self, context: StageContext) -> None:
        self.context = context
        self.policy = settings_of(context.environment.settings).admission
        self._replay = replay_pb2_grpc.ReplayStub(context.channel("replay"))
        self._timeout_s = context.settings.call_deadline_s

    async def open(self, cursor: int) -> int:
        """The cursor to begin with: that of the checkpoint, or (`cursor` 0) the store as of now.

        What an interrupted attempt of this stage stored after it is removed.
        """
        if self.policy.policy == "enrich":
            later = await self._stored_after(cursor)
            for start in range(0, len(later), _DELETED_AT_ONCE):
                request = replay_pb2.DeleteRequest(
                    environment_id=self.context.environment_id, episode_ids=later[start : start + _DELETED_AT_ONCE]
                )
                await self._call(lambda request=request: self._replay.Delete(request, timeout=self._timeout_s))
        return cursor or await self.context.replay_cursor()

    async def store(self, iteration: int, played: Sequence[PlayedEpisode], cursor: int) -> int:
        """Offer an iteration's episodes; answers the cursor of the next one, and reports what was taken."""
        if self.policy.policy != "enrich":
            return cursor
        admission = replay_pb2.Admission(
            enrich=True,
            minimum_confidence=self.policy.minimum_confidence,
            dream_transitions_max=self.policy.dream_transitions_max,
        )
        requests = [
            replay_pb2.AppendRequest(episode=self._message(one, iteration), admission=admission)
            for one in played
            if one.transitions
        ]
        if requests:
            answer = await self._call(lambda: self._replay.Append(iter(requests), timeout=self._timeout_s))
            self.context.metric("dreams_stored", iteration, float(answer.episodes_stored))
            self.context.metric("dreams_rejected", iteration, float(len(answer.rejected)))
        return await self.context.replay_cursor()

    async def _stored_after(self, cursor: int) -> list[str]:
        """This stage's own dreams whose transitions are newer than the cursor."""
        request = replay_pb2.ListEpisodesRequest(
            environment_id=self.context.environment_id,
            sources=[replay_pb2.SOURCE_DREAM],
            job_id=self.context.session.job_id,
        )

        async def listed() -> list[str]:
            return [
                stored.episode_id
                async for stored in self._replay.ListEpisodes(request, timeout=10 * self._timeout_s)
                if stored.transitions[0].id > cursor and load_json(stored.metadata)["stage"] == self.context.stage
            ]

        return list(await self._call(listed))

    def _message(self, played: PlayedEpisode, iteration: int) -> replay_pb2.StoredEpisode:
        episode = replace(
            played.as_episode(Source.DREAM), metadata={"stage": self.context.stage, "iteration": iteration}
        )
        return episode_to_proto(
            episode,
            environment_id=self.context.environment_id,
            job_id=self.context.session.job_id,
            policy_version=played.policy_version,
            model_version=played.model_version,
        )

    async def _call(self, call: Any) -> Any:
        return await self.context.patiently("replay", call)


__all__ = ["Enrichment"]
