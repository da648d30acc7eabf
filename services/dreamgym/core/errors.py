"""One hierarchy of errors.

An error passes four places: where it is raised, the service's edge (mapped once to a gRPC status, in `wire.errors`),
the gateway's edge (mapped once to a problem+json type, in `gateway.problems`), and the reader. Each error says what
happened, to which thing, and what the caller can do about it (`remedy`). A failed episode is data (`Failure`), not a crash,
and never a reward of 0.
"""

from __future__ import annotations

from typing import ClassVar


class DreamGymError(Exception):
    """Base of all errors that cross a boundary.

    `code` is stable and public; `retryable` says whether the same call may succeed later without a change.
    """

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class InvalidInputError(DreamGymError):
    """The caller sent something that cannot be used; the message names the field or line."""

    code = "invalid_input"


class NotFoundError(DreamGymError):
    """A named thing does not exist, or not for this tenant."""

    code = "not_found"


class ConflictError(DreamGymError):
    """The thing is in a state that does not allow the request."""

    code = "conflict"


class UnauthenticatedError(DreamGymError):
    """No valid key or service token came with the call."""

    code = "unauthenticated"


class PermissionDeniedError(DreamGymError):
    """The key is valid but its scope does not allow the call."""

    code = "permission_denied"


class LeaseLostError(DreamGymError):
    """A newer attempt holds the job: this one must stop and write nothing more."""

    code = "lease_lost"


class ModelMissingError(DreamGymError):
    """A model version is not in the object store, or not complete."""

    code = "model_missing"


class ModelOutputError(DreamGymError):
    """The experience model wrote something that cannot be read as a transition. It never becomes a state."""

    code = "model_output"


class EngineError(DreamGymError):
    """An inference engine failed or is not reachable."""

    code = "engine_failed"
    retryable = True


class ContextOverflowError(DreamGymError):
    """A prompt does not fit the engine's context window."""

    code = "context_overflow"


class BudgetExhaustedError(DreamGymError):
    """The budget of real transitions is spent; the action was not sent."""

    code = "budget_exhausted"


class AdapterError(DreamGymError):
    """A real environment failed; the episode is infrastructure failure."""

    code = "adapter_failed"
    retryable = True


class AdapterMissingError(DreamGymError):
    """A real environment's package is not installed, or no such adapter exists."""

    code = "adapter_missing"


class FidelityTooLowError(DreamGymError):
    """The experience model is below the floor that a job asks for."""

    code = "fidelity_too_low"


class CapacityError(DreamGymError):
    """No room for another episode or request now."""

    code = "capacity"
    retryable = True


class UnavailableError(DreamGymError):
    """Another service does not answer."""

    code = "unavailable"
    retryable = True


class StorageFullError(DreamGymError):
    """The disk or object store has no room left."""

    code = "storage_full"


class DeadlineError(DreamGymError):
    """A call or turn took longer than its deadline."""

    code = "deadline"
    retryable = True


def _all_errors() -> list[type[DreamGymError]]:
    found: list[type[DreamGymError]] = [DreamGymError]
    for cls in found:
        found += cls.__subclasses__()
    return found


BY_CODE: dict[str, type[DreamGymError]] = {cls.code: cls for cls in _all_errors()}
