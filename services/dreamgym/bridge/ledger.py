"""The written record of real episodes: sessions with their signs of life, and a row for every action."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, insert, text, update
from sqlalchemy.orm import Session

from dreamgym.bridge.adapters.protocol import AdapterState
from dreamgym.bridge.budget import RESERVE_SQL, BudgetKey, budget_exhausted, open_budget, read_budget
from dreamgym.bridge.database import Database
from dreamgym.bridge.guard import Decision, Verdict
from dreamgym.bridge.tables import AuditRow, SessionRow
from dreamgym.core.episodes import TerminationReason

_EXCERPT_CHARACTERS = 500
_ASKED = (
    *("session_id", "job_id", "budget_id", "environment_id", "adapter", "episode_id", "step", "action"),
    *("disposition", "reason", "policy_version", "state_excerpt", "state_sha256"),
)
_OUTCOME = ("next_state_excerpt", "next_state_sha256", "reward", "done", "success", "valid_action", "error")
_NO_OUTCOME = dict.fromkeys(_OUTCOME)

# The two statements on the way of every real action are written out; both go by primary or unique keys.
_PAY_AND_RECORD = text(
    f"WITH paid AS ({RESERVE_SQL}) INSERT INTO bridge.audit ({', '.join(_ASKED)}) "
    f"SELECT {', '.join(f':{name}' for name in _ASKED)} FROM paid RETURNING id"
)
_FILL_IN = text(
    "WITH alive AS (UPDATE bridge.sessions SET last_seen_at = now() WHERE id = :session_id) "
    f"UPDATE bridge.audit SET answered_at = now(), {', '.join(f'{name} = :{name}' for name in _OUTCOME)} "
    "WHERE session_id = :session_id AND step = :step"
)


@dataclass(frozen=True, slots=True)
class EpisodeIds:
    """What every record of an episode carries."""

    budget: BudgetKey
    environment_id: str
    adapter: str
    episode_id: str
    task_id: str
    policy_version: str


class Ledger:
    """Writes budgets, sessions and audit, each call as one statement. Every method may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def check_budget(self, key: BudgetKey, limit: int) -> None:
        """Open the budget, or raise ConflictError if it was opened with another limit."""
        await self._database.run(lambda session: open_budget(session, key, limit))

    async def open_session(self, ids: EpisodeIds, worker_pid: int) -> int:
        """Record that an episode is about to start, and answer the id of its session."""
        values = {
            **_common(ids),
            "task_id": ids.task_id,
            "worker_pid": worker_pid,
        }
        statement = insert(SessionRow).values(values).returning(SessionRow.id)
        return await self._database.run(lambda session: session.execute(statement).scalar_one())

    async def reserve(self, session_id: int, ids: EpisodeIds, step: int, action: str, state: str) -> None:
        """Pay for an action and record it, in one statement: after this, and only then, it may be sent.

        Raises BudgetExhaustedError; nothing is recorded then.
        """
        values = _asked(session_id, ids, step, action, state, Decision(Verdict.SENT))

        def work(session: Session) -> None:
            if session.execute(_PAY_AND_RECORD, values).first() is None:
                raise budget_exhausted(ids.budget, read_budget(session, ids.budget))

        await self._database.run(work)

    async def withhold(
        self, session_id: int, ids: EpisodeIds, step: int, action: str, state: str, decision: Decision
    ) -> None:
        """Record an action that the guard held back. It costs nothing."""
        values = {**_asked(session_id, ids, step, action, state, decision), "answered_at": func.now()}
        await self._database.run(lambda session: session.execute(insert(AuditRow).values(values)))

    async def answer(self, session_id: int, step: int, state: AdapterState) -> None:
        """Fill in what an action led to."""
        await self._fill_in(
            session_id,
            step,
            next_state_excerpt=_excerpt(state.state),
            next_state_sha256=_sha256(state.state),
            reward=state.reward,
            done=state.done,
            success=state.success,
            valid_action=state.valid_action,
        )

    async def failed(self, session_id: int, step: int, error: str) -> None:
        """Fill in that the environment failed on an action."""
        await self._fill_in(session_id, step, error=_excerpt(error))

    async def close_session(self, session_id: int, termination: TerminationReason) -> None:
        """Record an episode's end."""
        statement = (
            update(SessionRow)
            .where(SessionRow.id == session_id)
            .values(ended_at=func.now(), last_seen_at=func.now(), termination=termination.value)
        )
        await self._database.run(lambda session: session.execute(statement))

    async def renew_sessions(self, session_ids: Sequence[int]) -> None:
        """Sign of life of sessions that wait for their policy."""
        statement = update(SessionRow).where(SessionRow.id.in_(session_ids)).values(last_seen_at=func.now())
        await self._database.run(lambda session: session.execute(statement))

    async def close_dead_sessions(self, ttl_s: float) -> int:
        """Close the sessions of bridges that died, and answer how many there were."""
        statement = (
            update(SessionRow)
            .where(SessionRow.ended_at.is_(None), SessionRow.last_seen_at < func.now() - timedelta(seconds=ttl_s))
            .values(ended_at=func.now(), termination=TerminationReason.INFRASTRUCTURE.value)
            .returning(SessionRow.id)
        )
        return await self._database.run(lambda session: len(session.execute(statement).all()))

    async def _fill_in(self, session_id: int, step: int, **outcome: object) -> None:
        values = {**_NO_OUTCOME, **outcome, "session_id": session_id, "step": step}
        await self._database.run(lambda session: session.execute(_FILL_IN, values))


def _common(ids: EpisodeIds) -> dict[str, object]:
    return {
        "job_id": ids.budget.job_id,
        "budget_id": ids.budget.budget_id,
        "environment_id": ids.environment_id,
        "adapter": ids.adapter,
        "episode_id": ids.episode_id,
        "policy_version": ids.policy_version,
    }


def _asked(
    session_id: int, ids: EpisodeIds, step: int, action: str, state: str, decision: Decision
) -> dict[str, object]:
    return {
        **_common(ids),
        "session_id": session_id,
        "step": step,
        "action": _storable(action),
        "disposition": decision.verdict.value,
        "reason": decision.reason,
        "state_excerpt": _excerpt(state),
        "state_sha256": _sha256(state),
    }


def _storable(text: str) -> str:
    """PostgreSQL's text holds no NUL; an action may."""
    return text.replace("\0", "�")


def _excerpt(text: str) -> str:
    return _storable(text[:_EXCERPT_CHARACTERS])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
