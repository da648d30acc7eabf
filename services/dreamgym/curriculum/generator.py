"""Variations of tasks, asked from the experience service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from dreamgym.core.episodes import Task
from dreamgym.v1 import experience_pb2, experience_pb2_grpc
from dreamgym.wire.convert import task_from_proto, task_to_proto
from dreamgym.wire.errors import error_from_rpc


@dataclass(frozen=True)
class VariationRequest:
    """Seeds, the highest variance first, and the instructions that exist already."""

    environment_id: str
    experience_model: str
    seeds: Sequence[Task]
    count: int
    seed: int
    known_instructions: Sequence[str]


@dataclass(frozen=True)
class Variations:
    tasks: Sequence[Task]
    rejected: int


class Generator(Protocol):
    async def vary(self, request: VariationRequest) -> Variations:
        """Valid variations of the seeds. Raises a DreamGymError if there is no answer."""
        ...


class ExperienceGenerator:
    """Asks `ExperienceModel.GenerateTasks`."""

    def __init__(self, channel: grpc.aio.Channel, deadline_s: float) -> None:
        self._stub = experience_pb2_grpc.ExperienceModelStub(channel)
        self._deadline_s = deadline_s

    async def vary(self, request: VariationRequest) -> Variations:
        message = experience_pb2.GenerateTasksRequest(
            environment_id=request.environment_id,
            experience_model=request.experience_model,
            seeds=[task_to_proto(task) for task in request.seeds],
            count=request.count,
            seed=request.seed,
            known_instructions=request.known_instructions,
        )
        try:
            answer = await self._stub.GenerateTasks(message, timeout=self._deadline_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, service="experience") from error
        return Variations([task_from_proto(task) for task in answer.tasks], len(answer.rejected))
