"""Budgets of real transitions. One is reserved before an action is sent, so that no budget is ever exceeded."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from dreamgym.bridge.tables import Budget
from dreamgym.core.errors import BudgetExhaustedError, ConflictError, InvalidInputError

DEFAULT_BUDGET = "default"


@dataclass(frozen=True, slots=True)
class BudgetKey:
    """Names a budget: a job may have several, one for each of its stages."""

    job_id: str
    budget_id: str

    @classmethod
    def of(cls, job_id: str, budget_id: str) -> BudgetKey:
        """The key of a reset. Raises InvalidInputError without a job."""
        if not job_id:
            raise InvalidInputError(
                "A real episode needs a job_id: its transitions are paid from the job's budget.",
                remedy="Set Reset.job_id and Reset.transition_budget.",
            )
        return cls(job_id, budget_id or DEFAULT_BUDGET)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget as it stands, in real transitions."""

    limit: int
    used: int

    @property
    def left(self) -> int:
        return self.limit - self.used


def open_budget(session: Session, key: BudgetKey, limit: int) -> BudgetState:
    """Create the budget unless it is there; what it has used stays.

    Raises ConflictError for another limit than the one it was opened with: a limit cannot be talked up in mid-job.
    """
    if limit < 0:
        raise InvalidInputError(f"A transition budget of {limit} is not possible.", remedy="Use 0 or more.")
    session.execute(
        insert(Budget)
        .values(job_id=key.job_id, budget_id=key.budget_id, transition_limit=limit)
        .on_conflict_do_nothing()
    )
    state = read_budget(session, key)
    assert state is not None
    if state.limit != limit:
        raise ConflictError(
            f"The budget {key.budget_id!r} of job {key.job_id} has a limit of {state.limit} real transitions "
            f"({state.used} used), and a reset asks for {limit}.",
            remedy="Ask for the same limit, or name another budget_id.",
        )
    return state


def read_budget(session: Session, key: BudgetKey) -> BudgetState | None:
    """The budget as it stands; None if it was never opened."""
    row = session.execute(
        select(Budget.transition_limit, Budget.transitions_used).where(
            Budget.job_id == key.job_id, Budget.budget_id == key.budget_id
        )
    ).one_or_none()
    return None if row is None else BudgetState(*row)


RESERVE_SQL = """\
UPDATE bridge.budgets SET transitions_used = transitions_used + 1, updated_at = now()
WHERE job_id = :job_id AND budget_id = :budget_id AND transitions_used < transition_limit
RETURNING transitions_used"""
"""Takes one transition out of a budget; no row if none is left.

Condition and increment are one statement, so that the row's lock orders all that compete for the last one. It is part
of the statement that writes the audit row (`ledger`): both happen or neither does.
"""


def budget_exhausted(key: BudgetKey, state: BudgetState | None) -> BudgetExhaustedError:
    """The error for a budget that `RESERVE_SQL` found nothing in."""
    spent = "was never opened" if state is None else f"of {state.limit} real transitions is spent"
    return BudgetExhaustedError(
        f"The budget {key.budget_id!r} of job {key.job_id} {spent}; the action was not sent.",
        remedy="Give the job a larger transition budget.",
    )
