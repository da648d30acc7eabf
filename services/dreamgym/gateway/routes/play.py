"""`/v1/environments/{environment}/play` and `/v1/play`: act in the dream or in the real environment, step by step."""

from __future__ import annotations

from uuid import uuid4

from fastapi import APIRouter, Response

from dreamgym.core.environment_settings import settings_of
from dreamgym.core.episodes import Task as CoreTask
from dreamgym.core.errors import ConflictError, InvalidInputError, NotFoundError
from dreamgym.gateway import tasks
from dreamgym.gateway.access import State, Writer
from dreamgym.gateway.environments import get_environment
from dreamgym.gateway.models import get_model, resolve_model
from dreamgym.gateway.play import PlaySession
from dreamgym.gateway.schemas import ActInput, PlayInput, PlayObservation, PlayStarted
from dreamgym.gateway.state import GatewayState
from dreamgym.gateway.tables import Environment
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.wire.convert import task_to_proto, termination_from_proto

router = APIRouter(prefix="/v1", tags=["play"])


@router.post("/environments/{environment}/play", status_code=201)
async def open_session(
    environment: str, body: PlayInput, writer: Writer, state: State, response: Response
) -> PlayStarted:
    """Start an episode; the answer holds the first observation."""
    row = await get_environment(state.database, writer.tenant_id, environment)
    if body.where == "real" and not row.adapter:
        raise ConflictError(f"Environment {row.name!r} has no adapter.", remedy="Play in the dream.")
    task = await _task(state, row, body)
    reset = pb.Reset(
        environment_id=row.id,
        task=task_to_proto(task),
        seed=body.seed,
        max_steps=body.max_steps or row.max_steps,
        retrieved_per_step=-1,
    )
    if body.where == "real":
        reset.adapter = row.adapter
        # Budgets and the audit hang on a job; a session by hand is a job of its own there.
        reset.job_id = f"play-{uuid4().hex}"
        reset.transition_budget = body.transition_budget
        reset.record = False
    else:
        reset.dream_share_cap = settings_of(row.settings).admission.retrieved_share
        reset.experience_model = await _experience_model(state, row, body.experience_model)
    session, observation = await state.play.open(writer.tenant_id, body.where, reset)
    response.headers["Location"] = f"/v1/play/{session.id}"
    return PlayStarted(
        **_observation(session, observation).model_dump(),
        task_id=task.id,
        instruction=task.instruction,
        action_format=row.action_format,
        max_steps=reset.max_steps,
    )


@router.post("/play/{session}/act")
async def act(session: str, body: ActInput, writer: Writer, state: State) -> PlayObservation:
    """Take one action."""
    played, observation = await state.play.act(writer.tenant_id, session, body.action)
    return _observation(played, observation)


@router.delete("/play/{session}", status_code=204)
async def close_session(session: str, writer: Writer, state: State) -> Response:
    """End the episode."""
    state.play.close(writer.tenant_id, session)
    return Response(status_code=204)


async def _task(state: GatewayState, environment: Environment, body: PlayInput) -> CoreTask:
    if body.task_id is not None:
        found = await tasks.get_task(state.database, environment.id, body.task_id)
        if found is None:
            raise NotFoundError(
                f"Environment {environment.name!r} has no task {body.task_id!r}.",
                remedy=f"List them: GET /v1/environments/{environment.name}/tasks.",
            )
        return tasks.core_task(found)
    if not body.instruction:
        raise InvalidInputError("Neither task_id nor instruction is given.", remedy="Give one of them.")
    derived = tasks.derived_task_id(body.instruction, body.initial_state, None, {})
    return CoreTask(id=derived, instruction=body.instruction, initial_state=body.initial_state)


async def _experience_model(state: GatewayState, environment: Environment, name: str) -> str:
    if name == "latest":
        found = await resolve_model(state.database, name="", environment_id=environment.id, role="experience")
    else:
        found = await get_model(state.database, environment.tenant_id, name)
    return found.version


def _observation(session: PlaySession, observation: pb.Observation) -> PlayObservation:
    termination = termination_from_proto(observation.termination)
    return PlayObservation(
        session=session.id,
        step=session.steps,
        state=observation.state,
        reward=observation.reward,
        done=observation.done,
        success=observation.success,
        termination=termination.value if termination else None,
        valid_action=observation.valid_action,
        reasoning=observation.reasoning,
        confidence=observation.confidence,
        admissible_actions=list(observation.admissible_actions),
        retrieved=list(observation.retrieved),
        model_version=observation.model_version,
        world_sheet=observation.world_sheet,
    )
