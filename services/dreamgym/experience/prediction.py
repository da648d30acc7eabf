"""One transition without an episode, for measuring fidelity on recorded trajectories."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from dreamgym.core.consistency import Consistency, TrackedWorld
from dreamgym.core.criteria import Evidence, is_met, validate_criterion
from dreamgym.core.dream_prompt import main_chain, turn_text
from dreamgym.core.episodes import Source, Task, TerminationReason
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.policy_prompt import one_line
from dreamgym.core.world_sheet import parse
from dreamgym.experience.engines import LoadedModel
from dreamgym.experience.episode import Step, turns_of_history
from dreamgym.experience.retrieval import RetrievalScope, Retriever, demonstrations
from dreamgym.experience.transition import MainChain, predict

_numbers = itertools.count()


@dataclass(frozen=True)
class PredictionRequest:
    """A recorded past as (state, action); the last pair is the one to predict.

    `exclude_episode_id` keeps the recorded episode, and with it all episodes of its task, out of its own retrieval: they
    would show the world that is to be predicted.
    """

    environment_id: str
    task: Task
    history: tuple[tuple[str, str], ...]
    world_sheet: str = ""
    exclude_episode_id: str = ""
    retrieved_per_step: int = -1


async def predict_transition(model: LoadedModel, retriever: Retriever, request: PredictionRequest) -> Step:
    """What the model expects. `success` is the criterion's word where the task has one; `termination` carries the model's.

    So both can be measured: `success` against the recorded outcome, and the model's own flag.
    """
    if not request.history:
        raise InvalidInputError("history is empty.", remedy="Send at least the current state and the action.")
    criterion = request.task.criterion
    if criterion is not None:
        validate_criterion(criterion)
    card = model.card
    wanted = request.retrieved_per_step
    scope = RetrievalScope(
        environment_id=request.environment_id,
        k=card.retrieved_per_step if wanted < 0 else wanted,
        sources=tuple(Source(source) for source in card.retrieval_sources),
        splits=card.retrieval_splits,
    )
    *past, (state, action) = request.history
    action = one_line(action)
    turns = list(turns_of_history(past, state))
    initial_state = past[0][0] if past else state
    sheet = request.world_sheet if card.world_sheet else ""
    chain = MainChain(model.engine, main_chain(request.task.instruction, initial_state, (), sheet))
    world = TrackedWorld(initial_state, parse(sheet), card.consistency if sheet else Consistency(), card.refusals)
    for before, after in turns:
        chain.append(turn_text(before, after))
        world.follow(before, after)
    session = f"predict#{next(_numbers)}"
    try:
        excluded_task = request.task.id if request.exclude_episode_id else ""
        hits = await retriever.similar(
            scope, state, action, exclude_episode_id=request.exclude_episode_id, exclude_task_id=excluded_task
        )
        predicted = await predict(model, session, chain, action, demonstrations(hits), seed=0, world=world)
    finally:
        await model.engine.release(session)
    outcome = predicted.outcome
    met = outcome.success
    if criterion is not None:
        met = is_met(criterion, Evidence([*turns, (action, outcome.next_state)]))
    success = met and predicted.valid_action
    flags = {"success": TerminationReason.SUCCESS, "failure": TerminationReason.FAILURE}
    return Step(
        state=outcome.next_state,
        reward=1.0 if success else 0.0,
        done=success or outcome.flag == "failure",
        success=success,
        reasoning=outcome.reasoning,
        confidence=predicted.confidence,
        termination=flags.get(outcome.flag),
        retrieved=tuple(hit.id for hit in hits),
        valid_action=predicted.valid_action,
        prompt_tokens=predicted.prompt_tokens,
        completion_tokens=predicted.completion_tokens,
    )
