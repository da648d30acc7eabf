"""Takes recorded episodes line by line and hands the good ones to the replay service."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import orjson
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from dreamgym.core.episodes import Source, TerminationReason
from dreamgym.core.errors import DreamGymError, UnavailableError
from dreamgym.gateway.calls import error_of_call
from dreamgym.gateway.database import Database
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.tasks import (
    MAX_TEXT_CHARS,
    Criterion,
    CustomerId,
    Split,
    TaskInput,
    create_missing_tasks,
    derived_task_id,
)
from dreamgym.gateway.upload_lines import IssueReport, parse_line, read_lines
from dreamgym.v1 import replay_pb2 as pb
from dreamgym.wire.convert import dump_json, source_to_proto
from dreamgym.wire.errors import error_from_rpc

if TYPE_CHECKING:
    from dreamgym.v1.replay_pb2_grpc import ReplayAsyncStub  # a type of the stubs only

T = TypeVar("T")
MAX_STEPS = 2_000
_BATCH = 100
_BATCH_BYTES = 4 * 1024 * 1024
_FINISH_DEADLINE_S = 600.0


class StepInput(BaseModel):
    """What the agent did and what it saw then."""

    model_config = ConfigDict(extra="forbid")
    action: str = Field(max_length=MAX_TEXT_CHARS)
    state: str = Field(max_length=MAX_TEXT_CHARS, description="The state after the action.")
    reward: FiniteFloat | None = Field(None, description="If absent: 1 at the last step of a success, else 0.")
    done: bool | None = None
    success: bool | None = None
    valid: bool = Field(True, description="False if the environment refused the action.")


class TrajectoryInput(BaseModel):
    """One recorded episode, one line of an upload."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "episode_id": "run-3-0017",
                    "task_id": "clean-mug-17",
                    "instruction": "put a clean mug in the coffee machine",
                    "initial_state": "You are in the middle of a room.",
                    "success": True,
                    "steps": [
                        {"action": "take mug 1 from desk 1", "state": "You pick up the mug 1 from the desk 1."},
                        {"action": "move mug 1 to coffeemachine 1", "state": "You won!", "reward": 1, "done": True},
                    ],
                }
            ]
        },
    )
    episode_id: CustomerId | None = Field(None, description="Derived from the content if absent.")
    task_id: CustomerId | None = Field(None, description="Derived from the instruction and first state if absent.")
    instruction: str = Field(min_length=1, max_length=MAX_TEXT_CHARS)
    initial_state: str = Field(max_length=MAX_TEXT_CHARS)
    split: Split = "train"
    behaviour: str = Field("", max_length=200, description="Who acted: expert, random, a model's name.")
    criterion: Criterion = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    success: bool
    termination: TerminationReason | None = None
    steps: list[StepInput] = Field(min_length=1, max_length=MAX_STEPS)

    @model_validator(mode="after")
    def _consistent(self) -> TrajectoryInput:
        if self.termination is not None and self.success != (self.termination is TerminationReason.SUCCESS):
            raise ValueError(f"success is {self.success} and termination is {self.termination}")
        early = next((i for i, step in enumerate(self.steps[:-1]) if step.done), None)
        if early is not None:
            raise ValueError(f"steps.{early} is done and steps follow it")
        return self

    def task(self) -> TaskInput:
        task_id = self.task_id or derived_task_id(self.instruction, self.initial_state, self.criterion, {})
        return TaskInput.model_construct(
            id=task_id,
            instruction=self.instruction,
            initial_state=self.initial_state,
            criterion=self.criterion,
            # How a task is set up belongs to the task; what one run recorded beside it does no harm there.
            metadata=self.metadata,
            split=self.split,
        )

    def ended(self) -> TerminationReason:
        """Why the episode ended. A failure that nothing ended is taken for a recording that stopped: a step limit."""
        if self.termination is not None:
            return self.termination
        if self.success:
            return TerminationReason.SUCCESS
        return TerminationReason.FAILURE if self.steps[-1].done else TerminationReason.STEP_LIMIT


class _CallEndedError(Exception):
    """The append call was over before we were; the call knows why."""


@dataclass
class TrajectoryUpload:
    """What became of an upload of trajectories."""

    report: IssueReport
    episodes_stored: int = 0
    transitions_stored: int = 0
    already_there: int = 0
    repeated: int = 0
    tasks_created: int = 0
    lines: dict[str, int] = field(default_factory=dict)  # by episode id, for what the replay service refuses


def stored_episode(environment_id: str, trajectory: TrajectoryInput) -> pb.StoredEpisode:
    """The line as the replay service keeps it, with source `seed`."""
    ended = trajectory.ended()
    last = len(trajectory.steps) - 1
    closes = ended in (TerminationReason.SUCCESS, TerminationReason.FAILURE)
    transitions, state = [], trajectory.initial_state
    for index, step in enumerate(trajectory.steps):
        success = index == last and trajectory.success if step.success is None else step.success
        transitions.append(
            pb.StoredTransition(
                step=index,
                state=state,
                action=step.action,
                next_state=step.state,
                reward=float(index == last and trajectory.success) if step.reward is None else step.reward,
                done=(index == last and closes) if step.done is None else step.done,
                success=success,
                confidence=1.0,
                valid_action=step.valid,
            )
        )
        state = step.state
    metadata = {**trajectory.metadata, **({"behaviour": trajectory.behaviour} if trajectory.behaviour else {})}
    return pb.StoredEpisode(
        episode_id=trajectory.episode_id or _derived_episode_id(environment_id, trajectory),
        environment_id=environment_id,
        task_id=trajectory.task().task_id,
        instruction=trajectory.instruction,
        source=source_to_proto(Source.SEED),
        split=trajectory.split,
        termination=ended.value,
        success=trajectory.success,
        transitions=transitions,
        metadata=dump_json(metadata) if metadata else "",
    )


def _derived_episode_id(environment_id: str, trajectory: TrajectoryInput) -> str:
    content = [environment_id, trajectory.model_dump(mode="json", exclude={"episode_id"})]
    return f"ep_{hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]}"


async def import_trajectories(
    database: Database,
    replay: ReplayAsyncStub,
    environment_id: str,
    body: AsyncIterator[bytes],
    *,
    encoding: str,
    settings: GatewaySettings,
) -> TrajectoryUpload:
    """Store the good episodes of a JSONL stream and the tasks they name; the other lines are reported.

    Raises UnavailableError if the replay service does not answer; repeating the upload then stores nothing twice.
    """
    upload = TrajectoryUpload(IssueReport())
    # Any: the generated stub does not know a call that is written to message by message.
    append: Any = replay.Append
    call = append()
    try:
        batch: list[TrajectoryInput] = []
        size = 0
        async for line in read_lines(body, encoding=encoding, settings=settings, report=upload.report):
            trajectory = parse_line(line, TrajectoryInput, settings, upload.report)
            if trajectory is None:
                continue
            episode = stored_episode(environment_id, trajectory)
            first = upload.lines.setdefault(episode.episode_id, line.number)
            if first != line.number and trajectory.episode_id is None:
                # The same attempt recorded twice, without an id to tell them apart, is one episode.
                upload.repeated += 1
                continue
            if first != line.number:
                reason = f"The episode {episode.episode_id!r} is in line {first} already."
                upload.report.add(line.number, reason, "Remove one of them, or give them ids.")
                continue
            await _within(call.write(pb.AppendRequest(episode=episode)), settings.call_deadline_s)
            batch.append(trajectory)
            size += len(line.content or b"")
            if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                await _create_tasks(database, environment_id, batch, upload)
                batch, size = [], 0
        await _create_tasks(database, environment_id, batch, upload)
        await _within(call.done_writing(), settings.call_deadline_s)
        response = await _within(_answer(call), _FINISH_DEADLINE_S)
    except (grpc.RpcError, asyncio.InvalidStateError, _CallEndedError) as error:
        raise await _failed(call, error) from error
    finally:
        call.cancel()
    upload.episodes_stored = response.episodes_stored
    upload.transitions_stored = response.transitions_stored
    upload.already_there = response.episodes_already_stored + upload.repeated
    for rejection in response.rejected:
        line_number = upload.lines.get(rejection.episode_id, 0)
        upload.report.add(line_number, rejection.reason, "Correct the episode and send it again.")
    return upload


async def _create_tasks(
    database: Database, environment_id: str, batch: list[TrajectoryInput], upload: TrajectoryUpload
) -> None:
    tasks = {task.task_id: task for task in (trajectory.task() for trajectory in reversed(batch))}
    upload.tasks_created += len(await create_missing_tasks(database, environment_id, list(tasks.values())))


async def _answer(call: Any) -> pb.AppendResponse:
    response: pb.AppendResponse = await call
    return response


async def _within(step: Awaitable[T], deadline_s: float) -> T:
    try:
        async with asyncio.timeout(deadline_s):
            return await step
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _CallEndedError from None  # gRPC ends a call that lost its server by cancelling who waits for it
    except TimeoutError:
        raise UnavailableError(
            f"The replay service took nothing for {deadline_s:g} s.",
            remedy="Repeat the upload: what is stored is not stored twice.",
        ) from None


async def _failed(call: Any, error: BaseException) -> DreamGymError:
    """A write to a call that has ended says only that it ended; the call itself says why."""
    if isinstance(error, grpc.RpcError):
        return error_from_rpc(error, service="replay")
    return await error_of_call(call, service="replay")
