"""`/v1/environments` and what belongs to one: tasks, trajectories, statistics."""

from __future__ import annotations

from typing import Annotated, Any

import grpc
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from dreamgym.core.episodes import Source
from dreamgym.core.errors import InvalidInputError
from dreamgym.gateway import environments, tasks, trajectories
from dreamgym.gateway.access import Reader, State, Writer
from dreamgym.gateway.calls import answered
from dreamgym.gateway.pages import Cursor, Limit, decode_cursor, encode_cursor
from dreamgym.gateway.schemas import (
    Environment,
    EnvironmentChange,
    EnvironmentInput,
    EnvironmentPage,
    LineIssue,
    Task,
    TaskPage,
    TaskUploadResult,
    TrajectoryUploadResult,
)
from dreamgym.gateway.stored_schemas import (
    DeletedTrajectories,
    EnvironmentStatistics,
    StoredTransition,
    StoredTransitions,
    Trajectory,
    TrajectoryPage,
)
from dreamgym.gateway.tasks import TaskInput
from dreamgym.gateway.trajectories import TrajectoryInput
from dreamgym.gateway.upload_lines import IssueReport
from dreamgym.v1 import replay_pb2 as replay_pb
from dreamgym.wire.convert import source_to_proto
from dreamgym.wire.errors import error_from_rpc

router = APIRouter(prefix="/v1/environments", tags=["environments"])
Encoding = Annotated[
    str,
    Header(
        alias="Content-Encoding", description="`gzip` or absent.", json_schema_extra={"enum": ["gzip", "identity", ""]}
    ),
]


UPLOADED = (TaskInput, TrajectoryInput)
"""Models of uploads' lines, for the OpenAPI document."""


def _lines_of(model: type[Any], *, also_list: bool = False) -> dict[str, Any]:
    """The body of a streamed upload, for the OpenAPI document: FastAPI must not read it into memory."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    content: dict[str, Any] = {"application/x-ndjson": {"schema": schema}}
    if also_list:
        content["application/json"] = {"schema": {"type": "array", "items": schema}}
    return {"requestBody": {"required": False, "content": content}}


def _issues(report: IssueReport) -> list[LineIssue]:
    return [LineIssue.model_validate(issue) for issue in sorted(report.issues, key=lambda issue: issue.line)]


@router.post("", status_code=201, responses={200: {"model": Environment, "description": "It is there already."}})
async def create_environment(body: EnvironmentInput, writer: Writer, state: State, response: Response) -> Environment:
    """Create an environment. The very same one again is answered with 200; another one of that name is a conflict."""
    row, created = await environments.create_environment(state.database, writer.tenant_id, body.name, body.fields())
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/environments/{row.id}"
    return Environment.model_validate(row)


@router.get("")
async def list_environments(reader: Reader, state: State, limit: Limit = 100, cursor: Cursor = None) -> EnvironmentPage:
    """Environments in the order in which they were made."""
    after = decode_cursor("environments", cursor)
    rows = await environments.list_environments(state.database, reader.tenant_id, after=after, limit=limit)
    more = encode_cursor("environments", rows[-1].id) if len(rows) == limit else None
    return EnvironmentPage(items=[Environment.model_validate(row) for row in rows], next_cursor=more)


@router.get("/{environment}")
async def get_environment(environment: str, reader: Reader, state: State) -> Environment:
    """One environment by name or id."""
    return Environment.model_validate(await environments.get_environment(state.database, reader.tenant_id, environment))


@router.patch("/{environment}")
async def change_environment(environment: str, body: EnvironmentChange, writer: Writer, state: State) -> Environment:
    """Change some fields of an environment. A job under way takes them up with its next stage."""
    row = await environments.change_environment(state.database, writer.tenant_id, environment, body.fields())
    return Environment.model_validate(row)


@router.post("/{environment}/tasks", openapi_extra=_lines_of(TaskInput, also_list=True))
async def upload_tasks(
    environment: str, request: Request, writer: Writer, state: State, content_encoding: Encoding = ""
) -> TaskUploadResult:
    """Store tasks: JSONL, one object a line, or one JSON list. Faulty lines are reported, the others are kept."""
    row = await environments.get_environment(state.database, writer.tenant_id, environment)
    upload = await tasks.import_tasks(
        state.database, row.id, request.stream(), encoding=content_encoding.lower(), settings=state.settings
    )
    return TaskUploadResult(
        accepted=upload.accepted,
        already_there=upload.already_there,
        issue_count=upload.report.count,
        issues=_issues(upload.report),
    )


@router.get("/{environment}/tasks")
async def list_tasks(
    environment: str,
    reader: Reader,
    state: State,
    split: Annotated[list[str] | None, Query(description="Only tasks of these splits.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> TaskPage:
    """Tasks in the order of their arrival."""
    row = await environments.get_environment(state.database, reader.tenant_id, environment)
    position = decode_cursor("tasks", cursor) or "0"
    after = int(position) if position.isdecimal() and len(position) < 19 else 0
    rows = await tasks.list_tasks(state.database, row.id, splits=split or (), after=after, limit=limit)
    more = encode_cursor("tasks", rows[-1].number) if len(rows) == limit else None
    return TaskPage(items=[Task.of(task) for task in rows], next_cursor=more)


@router.post("/{environment}/trajectories", openapi_extra=_lines_of(TrajectoryInput))
async def upload_trajectories(
    environment: str, request: Request, writer: Writer, state: State, content_encoding: Encoding = ""
) -> TrajectoryUploadResult:
    """Store recorded episodes, one JSON object a line, and the tasks that they name.

    Faulty lines are reported with their number and kept out. A repeated upload stores nothing twice.
    """
    row = await environments.get_environment(state.database, writer.tenant_id, environment)
    upload = await trajectories.import_trajectories(
        state.database,
        state.replay,
        row.id,
        request.stream(),
        encoding=content_encoding.lower(),
        settings=state.settings,
    )
    return TrajectoryUploadResult(
        episodes_stored=upload.episodes_stored,
        transitions_stored=upload.transitions_stored,
        already_there=upload.already_there,
        tasks_created=upload.tasks_created,
        issue_count=upload.report.count,
        issues=_issues(upload.report),
    )


@router.get("/{environment}/trajectories")
async def list_trajectories(
    environment: str,
    reader: Reader,
    state: State,
    source: Annotated[list[Source] | None, Query(description="Only episodes from these sources.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> TrajectoryPage:
    """Stored episodes in the order of storing, without their steps."""
    row = await environments.get_environment(state.database, reader.tenant_id, environment)
    request = replay_pb.ListEpisodesRequest(
        environment_id=row.id,
        sources=[source_to_proto(one) for one in source or ()],
        limit=limit,
        after_episode_id=decode_cursor("trajectories", cursor) or "",
    )
    try:
        found = [one async for one in state.replay.ListEpisodes(request, timeout=state.settings.call_deadline_s)]
    except grpc.RpcError as error:
        raise error_from_rpc(error, service="replay") from error
    more = encode_cursor("trajectories", found[-1].episode_id) if len(found) == limit else None
    return TrajectoryPage(items=[Trajectory.of(one) for one in found], next_cursor=more)


@router.delete("/{environment}/trajectories")
async def delete_trajectories(
    environment: str,
    writer: Writer,
    state: State,
    episode: Annotated[list[str] | None, Query(description="Ids of episodes to remove.")] = None,
    everything: Annotated[bool, Query(alias="all", description="Remove all episodes of the environment.")] = False,
) -> DeletedTrajectories:
    """Remove stored episodes for good: those named, or all. Tasks, jobs and models stay."""
    row = await environments.get_environment(state.database, writer.tenant_id, environment)
    if everything == bool(episode):
        raise InvalidInputError(
            "The request names no episodes to remove, or episodes and all of them.",
            remedy="Give ?episode=ID (several times, if need be), or ?all=true.",
        )
    request = replay_pb.DeleteRequest(environment_id=row.id, episode_ids=episode or (), whole_environment=everything)
    gone = await answered(state.replay.Delete(request, timeout=state.settings.call_deadline_s), service="replay")
    return DeletedTrajectories(episodes=gone.episodes_deleted, transitions=gone.transitions_deleted)


@router.get("/{environment}/transitions")
async def get_transitions(
    environment: str,
    reader: Reader,
    state: State,
    ids: Annotated[
        list[Annotated[int, Field(ge=1, lt=2**63)]],
        Query(alias="id", min_length=1, max_length=100, description="Their ids."),
    ],
) -> StoredTransitions:
    """Single stored steps, such as those that an observation names in `retrieved`; what is not stored is left out."""
    row = await environments.get_environment(state.database, reader.tenant_id, environment)
    request = replay_pb.GetRequest(environment_id=row.id, transition_ids=ids)
    found = await answered(state.replay.Get(request, timeout=state.settings.call_deadline_s), service="replay")
    return StoredTransitions(items=[StoredTransition.of(one) for one in found.transitions])


@router.get("/{environment}/statistics")
async def environment_statistics(environment: str, reader: Reader, state: State) -> EnvironmentStatistics:
    """Stored episodes and transitions by source and split."""
    row = await environments.get_environment(state.database, reader.tenant_id, environment)
    request = replay_pb.StatisticsRequest(environment_id=row.id)
    found = await answered(state.replay.Statistics(request, timeout=state.settings.call_deadline_s), service="replay")
    return EnvironmentStatistics.of(found)
