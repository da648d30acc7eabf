"""Tasks of an environment: validated one by one, stored in batches, never twice."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from dreamgym.core.criteria import validate_criterion
from dreamgym.core.episodes import Task as CoreTask
from dreamgym.core.errors import InvalidInputError
from dreamgym.gateway.database import Database
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.tables import Task
from dreamgym.gateway.upload_lines import IssueReport, Line, parse_line, parse_record, read_lines

MAX_TEXT_CHARS = 200_000
_BATCH = 500
CustomerId = Annotated[str, Field(min_length=1, max_length=200)]
Split = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,40}$")]


def _checked(criterion: dict[str, Any] | None) -> dict[str, Any] | None:
    if criterion is not None:
        try:
            validate_criterion(criterion)
        except InvalidInputError as error:
            raise ValueError(str(error)) from None
    return criterion


Criterion = Annotated[
    dict[str, Any] | None, AfterValidator(_checked), Field(description="Success criterion, see core/criteria.py.")
]


class TaskInput(BaseModel):
    """One task as a customer describes it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "id": "clean-mug-17",
                    "instruction": "put a clean mug in the coffee machine",
                    "initial_state": "You are in the middle of a room.",
                    "criterion": {"contains": {"over": "state", "text": "you won"}},
                    "split": "train",
                }
            ]
        },
    )
    id: CustomerId | None = Field(
        None,
        validation_alias=AliasChoices("id", "task_id"),
        description="Unique in its environment; derived from the content if absent; also `task_id`.",
    )
    instruction: str = Field(min_length=1, max_length=MAX_TEXT_CHARS)
    initial_state: str = Field("", max_length=MAX_TEXT_CHARS)
    criterion: Criterion = None
    metadata: dict[str, Any] = Field(default_factory=dict, description="Free; adapters read how to set the task up.")
    split: Split = "train"

    @property
    def task_id(self) -> str:
        return self.id or derived_task_id(self.instruction, self.initial_state, self.criterion, self.metadata)


@dataclass
class TaskUpload:
    """What became of an upload of tasks."""

    report: IssueReport
    accepted: int = 0
    already_there: int = 0


def derived_task_id(instruction: str, initial_state: str, criterion: Any, metadata: Any) -> str:
    """The same content has the same id."""
    content = orjson.dumps([instruction, initial_state, criterion, metadata], option=orjson.OPT_SORT_KEYS)
    return f"task_{hashlib.sha256(content).hexdigest()[:24]}"


async def import_tasks(
    database: Database,
    environment_id: str,
    body: AsyncIterator[bytes],
    *,
    encoding: str,
    settings: GatewaySettings,
) -> TaskUpload:
    """Store the good tasks of a JSONL stream or of one JSON list; the others are reported by line (item) number."""
    upload = TaskUpload(IssueReport())
    batch: list[tuple[int, TaskInput]] = []
    async for number, task in _parsed(body, encoding, settings, upload.report):
        batch.append((number, task))
        if len(batch) >= _BATCH:
            await _store(database, environment_id, batch, upload)
            batch.clear()
    await _store(database, environment_id, batch, upload)
    return upload


async def _parsed(
    body: AsyncIterator[bytes], encoding: str, settings: GatewaySettings, report: IssueReport
) -> AsyncIterator[tuple[int, TaskInput]]:
    lines = read_lines(body, encoding=encoding, settings=settings, report=report)
    first: Line | None = await anext(lines, None)
    if first is not None and first.content is not None and first.content.lstrip().startswith(b"["):
        for position, value in enumerate(await _whole_list(first.content, lines, settings), start=1):
            if (task := parse_record(position, value, TaskInput, report)) is not None:
                yield position, task
        return
    if first is not None and (task := parse_line(first, TaskInput, settings, report)) is not None:
        yield first.number, task
    async for line in lines:
        if (task := parse_line(line, TaskInput, settings, report)) is not None:
            yield line.number, task


async def _whole_list(start: bytes, lines: AsyncIterator[Line], settings: GatewaySettings) -> list[Any]:
    content = bytearray(start)
    async for line in lines:
        content += b"\n" + (line.content or b"")
        if len(content) > settings.max_body_bytes:
            raise InvalidInputError(
                f"A JSON list may have {settings.max_body_bytes} bytes.", remedy="Send larger uploads as JSONL."
            )
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(
            f"The body starts like a JSON list and is none: {error}.", remedy="Send JSONL."
        ) from None
    return parsed if isinstance(parsed, list) else [parsed]


async def _store(
    database: Database, environment_id: str, batch: Sequence[tuple[int, TaskInput]], upload: TaskUpload
) -> None:
    if not batch:
        return
    by_id: dict[str, tuple[int, TaskInput]] = {}
    repeated: list[tuple[int, TaskInput]] = []
    for number, task in batch:
        if by_id.setdefault(task.task_id, (number, task))[1] is not task:
            repeated.append((number, task))
    created = await create_missing_tasks(database, environment_id, [task for _, task in by_id.values()])
    upload.accepted += len(created)
    doubtful = [item for task_id, item in by_id.items() if task_id not in created] + repeated
    stored = await _tasks_by_id(database, environment_id, [task.task_id for _, task in doubtful])
    for number, task in doubtful:
        if _same(stored[task.task_id], task):
            upload.already_there += 1
        else:
            reason = f"There is a task {task.task_id!r} with other content."
            upload.report.add(number, reason, "Give the changed task another id.")


async def create_missing_tasks(database: Database, environment_id: str, tasks: Sequence[TaskInput]) -> set[str]:
    """Insert the tasks whose ids are not there yet; answers the ids that were created."""
    if not tasks:
        return set()
    rows = [
        {
            "environment_id": environment_id,
            "id": task.task_id,
            "instruction": task.instruction,
            "initial_state": task.initial_state,
            "criterion": task.criterion,
            "details": task.metadata,
            "split": task.split,
        }
        for task in tasks
    ]
    statement = insert(Task).on_conflict_do_nothing(index_elements=["environment_id", "id"]).returning(Task.id)
    async with database.transaction() as session:
        return set(await session.scalars(statement, rows))


async def list_tasks(
    database: Database, environment_id: str, *, splits: Sequence[str], after: int, limit: int
) -> list[Task]:
    """Tasks in the order of their arrival; `after` is the number of the last one that was seen."""
    query = select(Task).where(Task.environment_id == environment_id, Task.number > after)
    if splits:
        query = query.where(Task.split.in_(splits))
    async with database.transaction() as session:
        return list(await session.scalars(query.order_by(Task.number).limit(limit)))


async def get_task(database: Database, environment_id: str, task_id: str) -> Task | None:
    """One task by the customer's id."""
    return (await _tasks_by_id(database, environment_id, [task_id])).get(task_id)


def core_task(row: Task) -> CoreTask:
    """The row as the core's value."""
    return CoreTask(
        id=row.id,
        instruction=row.instruction,
        initial_state=row.initial_state,
        criterion=row.criterion,
        metadata=row.details,
        split=row.split,
    )


async def _tasks_by_id(database: Database, environment_id: str, ids: Sequence[str]) -> dict[str, Task]:
    if not ids:
        return {}
    query = select(Task).where(Task.environment_id == environment_id, Task.id.in_(ids))
    async with database.transaction() as session:
        return {task.id: task for task in await session.scalars(query)}


def _same(row: Task, task: TaskInput) -> bool:
    mine = (task.instruction, task.initial_state, task.criterion, task.metadata, task.split)
    return mine == (row.instruction, row.initial_state, row.criterion, row.details, row.split)
