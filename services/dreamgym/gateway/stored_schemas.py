"""What the REST API answers of the replay store: counts, episodes, single steps."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, Field

from dreamgym.v1 import replay_pb2 as pb
from dreamgym.wire.convert import source_from_proto


class SourceCount(BaseModel):
    source: str
    split: str
    episodes: int
    transitions: int
    successes: int


class RejectionCount(BaseModel):
    reason: str = Field(description="invalid, real_only, unfinished, low_confidence or dream_full.")
    episodes: int = Field(description="One that is sent again is counted again.")
    transitions: int


class EnvironmentStatistics(BaseModel):
    episodes: int
    transitions: int
    counts: list[SourceCount]
    rejections: list[RejectionCount]
    cursor: int
    encoder: str

    @classmethod
    def of(cls, found: pb.StatisticsResponse) -> Self:
        return cls(
            episodes=sum(count.episodes for count in found.counts),
            transitions=sum(count.transitions for count in found.counts),
            counts=[
                SourceCount(
                    source=source_from_proto(count.source).value,
                    split=count.split,
                    episodes=count.episodes,
                    transitions=count.transitions,
                    successes=count.successes,
                )
                for count in found.counts
            ],
            rejections=[
                RejectionCount(reason=count.code, episodes=count.episodes, transitions=count.transitions)
                for count in found.rejections
            ],
            cursor=found.cursor,
            encoder=found.encoder,
        )


class Trajectory(BaseModel):
    """A stored episode without its steps."""

    episode_id: str
    task_id: str
    instruction: str
    source: Literal["seed", "dream", "real"]
    split: str
    success: bool
    termination: str
    steps: int
    job_id: str
    model_version: str
    policy_version: str

    @classmethod
    def of(cls, stored: pb.StoredEpisode) -> Self:
        return cls(
            episode_id=stored.episode_id,
            task_id=stored.task_id,
            instruction=stored.instruction,
            source=source_from_proto(stored.source).value,
            split=stored.split,
            success=stored.success,
            termination=stored.termination,
            steps=len(stored.transitions),
            job_id=stored.job_id,
            model_version=stored.model_version,
            policy_version=stored.policy_version,
        )


class TrajectoryPage(BaseModel):
    items: list[Trajectory]
    next_cursor: str | None = None


class StoredTransition(BaseModel):
    """One stored step, with where it comes from."""

    id: int
    source: Literal["seed", "dream", "real"]
    episode_id: str
    instruction: str
    step: int
    state: str
    action: str
    reasoning: str
    next_state: str
    reward: float
    success: bool
    valid_action: bool
    confidence: float

    @classmethod
    def of(cls, found: pb.FoundTransition) -> Self:
        stored = found.transition
        return cls(
            id=stored.id,
            source=source_from_proto(found.source).value,
            episode_id=found.episode_id,
            instruction=found.instruction,
            step=stored.step,
            state=stored.state,
            action=stored.action,
            reasoning=stored.reasoning,
            next_state=stored.next_state,
            reward=stored.reward,
            success=stored.success,
            valid_action=stored.valid_action,
            confidence=stored.confidence,
        )


class StoredTransitions(BaseModel):
    items: list[StoredTransition]


class DeletedTrajectories(BaseModel):
    episodes: int
    transitions: int
