"""One episode of the dream (METHOD section 3): reset, then one transition for each action.

Everything is determined by (model version, task, seed, actions, replay cursor). A fault is a typed error, never a state and
never a reward of 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from dreamgym.core.consistency import TrackedWorld
from dreamgym.core.criteria import Evidence, is_met, validate_criterion
from dreamgym.core.dream_prompt import main_chain, turn_text
from dreamgym.core.episodes import Source, Task, TerminationReason
from dreamgym.core.errors import ConflictError, InvalidInputError
from dreamgym.core.policy_prompt import one_line
from dreamgym.core.world_sheet import render
from dreamgym.experience.engines import LoadedModel
from dreamgym.experience.retrieval import RetrievalScope, Retriever, demonstrations
from dreamgym.experience.transition import MainChain, Predicted, predict

_numbers = itertools.count()


@dataclass(frozen=True)
class EpisodeRequest:
    """What a reset asks for. `turns` is a past to resume from, as (action, resulting state)."""

    environment_id: str
    task: Task
    episode_id: str = ""
    seed: int = 0
    max_steps: int = 0
    initial_state: str = ""
    turns: tuple[tuple[str, str], ...] = ()
    replay_cursor: int = 0
    retrieved_per_step: int = -1
    self_judged: bool = False
    dream_share_cap: float = 0.0
    exclude_own_task: bool = False


@dataclass(frozen=True)
class Step:
    """What the policy sees of a step, and how it came about."""

    state: str
    reward: float = 0.0
    done: bool = False
    success: bool = False
    reasoning: str = ""
    confidence: float = 1.0
    termination: TerminationReason | None = None
    retrieved: tuple[int, ...] = ()
    valid_action: bool = True
    prompt_tokens: int = 0
    completion_tokens: int = 0
    world_sheet: str = field(default="")


class DreamEpisode:
    """Plays one task with one experience model. `close` frees the engine's session; it may be called twice."""

    def __init__(self, model: LoadedModel, retriever: Retriever, request: EpisodeRequest) -> None:
        if request.task.criterion is not None:
            validate_criterion(request.task.criterion)
        self._model = model
        self._retriever = retriever
        self._request = request
        self._session = f"{request.episode_id or 'episode'}#{next(_numbers)}"
        card = model.card
        wanted = request.retrieved_per_step
        self._scope = RetrievalScope(
            environment_id=request.environment_id,
            k=card.retrieved_per_step if wanted < 0 else wanted,
            sources=tuple(Source(source) for source in card.retrieval_sources),
            cursor=request.replay_cursor,
            splits=card.retrieval_splits,
            dream_share_cap=request.dream_share_cap,
        )
        world = model.worlds.world_for(request.task, request.seed, card.world_keep)
        self._initial_state = request.initial_state.strip() or world.initial_state
        if not self._initial_state:
            raise InvalidInputError(
                f"The task {request.task.id!r} has no initial state, and the experience model recorded no world.",
                remedy="Give the task an initial state, or train the experience model on seeds that have one.",
            )
        self.world_sheet = render(world.sheet) if card.world_sheet else ""
        self._turns: list[tuple[str, str]] = [(one_line(action), state.strip()) for action, state in request.turns]
        opening = main_chain(request.task.instruction, self._initial_state, (), self.world_sheet)
        self._chain = MainChain(model.engine, opening)
        self._world = TrackedWorld(self._initial_state, world.sheet, card.consistency, card.refusals)
        for action, state in self._turns:
            self._chain.append(turn_text(action, state))
            self._world.follow(action, state)
        self._max_steps = request.max_steps or card.max_steps
        self._over = len(self._turns) >= self._max_steps

    @property
    def state(self) -> str:
        """The newest state."""
        return self._turns[-1][1] if self._turns else self._initial_state

    def first(self) -> Step:
        """What the policy sees before its first action: the initial state, or the last one of a resumed past."""
        if self._over:
            return Step(self.state, done=True, termination=TerminationReason.STEP_LIMIT, world_sheet=self.world_sheet)
        return Step(self.state, world_sheet=self.world_sheet)

    async def act(self, action: str) -> Step:
        """The transition that an action brings about.

        Raises ModelOutputError, ContextOverflowError, EngineError or UnavailableError where there is none; the episode
        stays as it was.
        """
        if self._over:
            raise ConflictError("This episode is over.", remedy="Open a new stream for another episode.")
        action = one_line(action)
        if not action:
            return self._refuse_silence()
        excluded = self._request.task.id if self._request.exclude_own_task else ""
        hits = await self._retriever.similar(self._scope, self.state, action, exclude_task_id=excluded)
        predicted = await predict(
            self._model,
            self._session,
            self._chain,
            action,
            demonstrations(hits),
            seed=self._request.seed * 1009 + len(self._turns) * 2,
            world=self._world,
        )
        state = predicted.outcome.next_state
        self._turns.append((action, state))
        self._chain.append(turn_text(action, state))
        if predicted.valid_action:
            self._world.follow(action, state)
        termination = self._termination(predicted)
        self._over = termination is not None
        success = termination is TerminationReason.SUCCESS
        return Step(
            state=state,
            reward=1.0 if success else 0.0,
            done=self._over,
            success=success,
            reasoning=predicted.outcome.reasoning,
            confidence=predicted.confidence,
            termination=termination,
            retrieved=tuple(hit.id for hit in hits),
            valid_action=predicted.valid_action,
            prompt_tokens=predicted.prompt_tokens,
            completion_tokens=predicted.completion_tokens,
        )

    def _refuse_silence(self) -> Step:
        """An action without a word is refused in the environment's own words; nothing is similar to it and nothing changes."""
        refusals = self._model.card.refusals
        state = refusals[0] if refusals else self.state
        self._turns.append(("", state))
        self._chain.append(turn_text("", state))
        self._over = len(self._turns) >= self._max_steps
        termination = TerminationReason.STEP_LIMIT if self._over else None
        return Step(state=state, done=self._over, termination=termination, valid_action=False)

    async def close(self) -> None:
        await self._model.engine.release(self._session)

    def _termination(self, predicted: Predicted) -> TerminationReason | None:
        """Success is the criterion's word where there is one: the model's own flag is what a policy learns to exploit."""
        criterion = self._request.task.criterion
        judged_by_model = criterion is None or self._request.self_judged
        if judged_by_model:
            met = predicted.outcome.success
        else:
            assert criterion is not None
            met = is_met(criterion, Evidence(self._turns))
        if met and predicted.valid_action:
            return TerminationReason.SUCCESS
        if judged_by_model and predicted.outcome.flag == "failure":
            return TerminationReason.FAILURE
        return TerminationReason.STEP_LIMIT if len(self._turns) >= self._max_steps else None


def turns_of_history(history: Sequence[tuple[str, str]], last_state: str) -> tuple[tuple[str, str], ...]:
    """(action, resulting state) turns of a history of (state, action), whose last action led to `last_state`."""
    states = [*(state for state, _ in history[1:]), last_state] if history else []
    return tuple((action, state) for (_, action), state in zip(history, states, strict=True))
