"""Reads a `Reset` message as a request for a real episode, and says what is wrong with it by the field's name."""

from __future__ import annotations

import uuid

from dreamgym.bridge.budget import BudgetKey
from dreamgym.bridge.episode import EpisodeRequest
from dreamgym.bridge.ledger import EpisodeIds
from dreamgym.core.errors import InvalidInputError
from dreamgym.v1 import environment_pb2 as pb
from dreamgym.wire.convert import task_from_proto

_LONGEST_ID = 500


def read_reset(reset: pb.Reset) -> EpisodeRequest:
    """The request of a stream's first message. Raises InvalidInputError naming the field."""
    names = ("environment_id", "episode_id", "job_id", "adapter", "policy_version", "budget_id")
    values = {name: _identifier(f"Reset.{name}", getattr(reset, name)) for name in names}
    if not values["adapter"]:
        raise InvalidInputError("Reset.adapter is empty.", remedy="Name the adapter of the real environment.")
    if reset.history:
        raise InvalidInputError("Reset.history is set; a real environment cannot resume from a past.")
    if reset.max_steps < 0:
        raise InvalidInputError(f"Reset.max_steps is {reset.max_steps}.", remedy="Use 0 for the adapter's own limit.")
    try:
        task = task_from_proto(reset.task)
    except ValueError as error:
        raise InvalidInputError(f"Reset.task has criterion or metadata that is no JSON: {error}.") from error
    if not isinstance(task.metadata, dict):
        raise InvalidInputError("Reset.task.metadata is not a JSON object.")
    ids = EpisodeIds(
        budget=BudgetKey.of(values["job_id"], values["budget_id"]),
        environment_id=values["environment_id"],
        adapter=values["adapter"],
        episode_id=values["episode_id"] or uuid.uuid4().hex,
        task_id=_identifier("Reset.task.id", task.id),
        policy_version=values["policy_version"],
    )
    return EpisodeRequest(ids, task, reset.seed, reset.max_steps, reset.transition_budget, reset.record)


def _identifier(field: str, value: str) -> str:
    if "\0" in value or len(value) > _LONGEST_ID:
        raise InvalidInputError(f"{field} is no identifier: it holds a NUL or is over {_LONGEST_ID} characters long.")
    return value
