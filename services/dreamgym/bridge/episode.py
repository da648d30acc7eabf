"""One episode on a real environment: guard, pay, record, send, in this order, and stop where an episode stops."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from dreamgym.bridge import metrics
from dreamgym.bridge.adapters.protocol import AdapterState
from dreamgym.bridge.guard import Decision, Guard, Verdict
from dreamgym.bridge.ledger import EpisodeIds, Ledger
from dreamgym.bridge.settings import BridgeSettings
from dreamgym.bridge.worker_process import WorkerProcess
from dreamgym.core.episodes import Episode, Source, Task, TerminationReason, Transition
from dreamgym.core.errors import ConflictError, DreamGymError, UnavailableError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """What a reset asks for. max_steps 0: the adapter's own limit."""

    ids: EpisodeIds
    task: Task
    seed: int
    max_steps: int
    transition_budget: int
    record: bool


class RealEpisode:
    """Plays one episode with one adapter process. `termination` is None while it runs.

    `open`, `begin`, then `act` until it is over, then `conclude` in any case. Nothing reaches the environment unless the
    ledger has written it down first.
    """

    def __init__(
        self, request: EpisodeRequest, worker: WorkerProcess, ledger: Ledger, guard: Guard, settings: BridgeSettings
    ) -> None:
        self.request = request
        self.termination: TerminationReason | None = None
        self.session_id: int | None = None
        self._worker = worker
        self._ledger = ledger
        self._guard = guard
        self._settings = settings
        self._max_steps = request.max_steps or worker.info.max_steps
        self._real = AdapterState(state="")
        self._step = 0
        self._held_back = 0
        self._transitions: list[Transition] = []
        self._unwritten: tuple[int, AdapterState] | None = None
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> int:
        """Record that the episode is about to touch the environment; answer the id of its session."""
        self.session_id = await self._ledger.open_session(self.request.ids, self._worker.pid)
        return self.session_id

    async def begin(self) -> AdapterState:
        """Reset the environment. Costs no transition."""
        task = self.request.task
        self._real = await self._worker.reset(task.metadata, self.request.seed, self._settings.bridge_reset_deadline_s)
        self._note_end(self._real)
        return self._real

    async def act(self, action: str) -> AdapterState:
        """Send one action, or hold it back where the guard says so, and answer what the agent sees next.

        Raises BudgetExhaustedError (not sent), UnavailableError (not sent), AdapterError or DeadlineError (sent).
        """
        if self.session_id is None or self.termination is not None:
            raise ConflictError("This episode is over.", remedy="Open a new stream with a reset.")
        await self._settle()
        decision = self._guard.judge(action)
        if decision.verdict is Verdict.SENT:
            seen = await self._send(self.session_id, action)
        else:
            seen = await self._hold_back(self.session_id, action, decision)
        self._step += 1
        self._note_end(seen)
        return seen

    async def conclude(self) -> Episode | None:
        """Write down what is still unwritten and close the session; answer the episode's real transitions, if any.

        Never raises for the database: the log tells, and the dead session is closed by its time to live.
        """
        termination = self.termination or TerminationReason.CANCELLED
        metrics.EPISODES.labels(termination.value).inc()
        if self.session_id is not None:
            try:
                await self._settle()
                await self._ledger.close_session(self.session_id, termination)
            except DreamGymError as error:
                log.error("session not closed", extra={"session": self.session_id, "cause": str(error)})
        if not self._transitions:
            return None
        metadata = {"adapter": self.request.ids.adapter, "seed": self.request.seed, "held_back": self._held_back}
        return Episode(
            id=self.request.ids.episode_id,
            task=self.request.task,
            source=Source.REAL,
            transitions=tuple(self._transitions),
            termination=termination,
            metadata=metadata,
        )

    async def _send(self, session_id: int, action: str) -> AdapterState:
        ids, before = self.request.ids, self._real.state
        await self._ledger.reserve(session_id, ids, self._step, action, before)
        metrics.TRANSITIONS.labels(ids.adapter).inc()
        started = time.perf_counter()
        try:
            after = await self._worker.step(action, self._settings.bridge_step_deadline_s)
        except DreamGymError as error:
            await self._write_failure(session_id, error)
            raise
        metrics.STEP_SECONDS.labels(ids.adapter).observe(time.perf_counter() - started)
        # The outcome is written while the agent thinks; the next action waits for it.
        self._unwritten = (self._step, after)
        self._writing = asyncio.create_task(self._write_outcome(session_id))
        self._transitions.append(
            Transition(
                state=before,
                action=action,
                next_state=after.state,
                reward=after.reward,
                done=after.done,
                success=after.success,
                valid_action=after.valid_action,
            )
        )
        self._real = after
        return after

    async def _hold_back(self, session_id: int, action: str, decision: Decision) -> AdapterState:
        await self._ledger.withhold(session_id, self.request.ids, self._step, action, self._real.state, decision)
        metrics.GUARDED.labels(decision.verdict.value).inc()
        self._held_back += 1
        dry = decision.verdict is Verdict.DRY_RUN
        said = "The action was only tried dry" if dry else "The action was refused"
        text = f"{said}: {decision.reason} Nothing has changed.\n{self._real.state}"
        return replace(self._real, state=text, reward=0.0, valid_action=dry, expert_action=None)

    def _note_end(self, seen: AdapterState) -> None:
        if seen.done:
            self.termination = TerminationReason.SUCCESS if seen.success else TerminationReason.FAILURE
        elif self._step >= self._max_steps:
            self.termination = TerminationReason.STEP_LIMIT

    async def _settle(self) -> None:
        """Wait until the last outcome is written; if that failed, write it now or raise UnavailableError."""
        if self._writing is not None:
            await self._writing
            self._writing = None
        if self._unwritten is not None and self.session_id is not None:
            await self._ledger.answer(self.session_id, *self._unwritten)
            self._unwritten = None

    async def _write_outcome(self, session_id: int) -> None:
        if self._unwritten is None:
            return
        try:
            await self._ledger.answer(session_id, *self._unwritten)
            self._unwritten = None
        except UnavailableError as error:
            log.warning("outcome not written yet", extra={"session": session_id, "cause": str(error)})

    async def _write_failure(self, session_id: int, error: DreamGymError) -> None:
        try:
            await self._ledger.failed(session_id, self._step, str(error))
        except UnavailableError as cause:
            log.error("failure not written", extra={"session": session_id, "failure": str(error), "cause": str(cause)})
