"""Errors as RFC 9457 problem+json: one stable type for each code of `core.errors`, with the remedy.

`type` is `urn:dreamgym:problem:CODE`. `errors` names the faulty fields of a request, `request_id` finds it in the log.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from dreamgym.core import jobs as job_specs
from dreamgym.core.errors import DreamGymError

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:dreamgym:problem:"
STATUS_OF: dict[str, int] = {
    "internal": 500,
    "invalid_input": 422,
    "not_found": 404,
    "conflict": 409,
    "unauthenticated": 401,
    "permission_denied": 403,
    "lease_lost": 409,
    "model_missing": 404,
    "model_output": 502,
    "engine_failed": 503,
    "context_overflow": 422,
    "budget_exhausted": 409,
    "adapter_failed": 502,
    "adapter_missing": 409,
    "fidelity_too_low": 409,
    "capacity": 429,
    "unavailable": 503,
    "storage_full": 507,
    "deadline": 504,
    # Of HTTP itself, without a class in core.errors:
    "malformed_body": 400,
    "method_not_allowed": 405,
    "body_too_large": 413,
}
_CODE_OF_STATUS = {
    400: "malformed_body",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
}
_RETRY_AFTER_S = {429: 5, 503: 2}
_FIELD_NAMES = {
    name
    for cls in vars(job_specs).values()
    if isinstance(cls, type) and issubclass(cls, BaseModel)
    for name in cls.model_fields
}


# pydantic puts the chosen kind into the path of a fault; in the sender's document it is no step of the path.
_KINDS = {
    cls.model_fields["kind"].default
    for cls in vars(job_specs).values()
    if isinstance(cls, type) and issubclass(cls, BaseModel) and "kind" in cls.model_fields
}
_NOT_FIELDS = {"body", "query", "path", "header", *_KINDS}


class FieldProblem(BaseModel):
    field: str
    reason: str
    remedy: str = ""


class Problem(BaseModel):
    """RFC 9457 problem details."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:dreamgym:problem:not_found",
                    "title": "Not Found",
                    "status": 404,
                    "detail": "There is no job 'job_x'.",
                    "code": "not_found",
                    "remedy": "List them: GET /v1/jobs.",
                    "instance": "/v1/jobs/job_x",
                    "request_id": "req_01k",
                }
            ]
        }
    )
    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str = ""
    instance: str = ""
    request_id: str = ""
    errors: list[FieldProblem] = Field(default_factory=list)


def problem_response(
    request: Request,
    code: str,
    detail: str,
    *,
    remedy: str = "",
    errors: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
    status: int | None = None,
) -> JSONResponse:
    """The answer for one error code."""
    status = status or STATUS_OF.get(code, 500)
    problem = Problem(
        type=TYPE_PREFIX + code,
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        remedy=remedy,
        instance=request.url.path,
        request_id=getattr(request.state, "request_id", ""),
        errors=list(errors),
    )
    extra = dict(headers or {})
    if status in _RETRY_AFTER_S:
        extra["Retry-After"] = str(_RETRY_AFTER_S[status])
    if status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    content = problem.model_dump(mode="json", exclude=None if errors else {"errors"})
    return JSONResponse(content, status_code=status, headers=extra, media_type=MEDIA_TYPE)


def install_problem_handlers(app: FastAPI) -> None:
    """Make every error of `app` a problem."""

    @app.exception_handler(DreamGymError)
    async def typed(request: Request, error: DreamGymError) -> JSONResponse:
        if STATUS_OF.get(error.code, 500) >= 500:
            log.warning("request failed", extra={"code": error.code, "reason": str(error), "path": request.url.path})
        return problem_response(request, error.code, error.message, remedy=error.remedy)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = error.errors()
        broken = next((fault for fault in faults if fault["type"] == "json_invalid"), None)
        if broken is not None:
            reason = broken.get("ctx", {}).get("error", broken["msg"])
            detail = f"The body is not JSON: {reason} (at character {broken['loc'][-1]})."
            return problem_response(request, "malformed_body", detail, remedy="Send one JSON document.")
        problems = [field_problem(fault) for fault in faults[:20]]
        detail = "; ".join(f"{problem.field}: {problem.reason}" for problem in problems[:5])
        remedy = " ".join(dict.fromkeys(problem.remedy for problem in problems if problem.remedy))
        remedy = remedy or "See the request's schema in /openapi.json."
        return problem_response(request, "invalid_input", detail, remedy=remedy, errors=problems)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODE_OF_STATUS.get(error.status_code, "invalid_input" if error.status_code < 500 else "internal")
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(_methods(request)))
        return problem_response(request, code, str(error.detail), status=error.status_code, headers=headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.exception("request failed", extra={"path": request.url.path}, exc_info=error)
        return problem_response(
            request, "internal", "The gateway failed; its log has the details.", remedy="Retry or report it."
        )


def _methods(request: Request) -> set[str]:
    """All methods of a path; the router names only those of the first route that has it."""
    wanted = request.url.path.split("/")
    found: set[str] = set()
    for path, item in request.app.openapi()["paths"].items():
        parts = path.split("/")
        fits = len(parts) == len(wanted) and all(
            part == given or part.startswith("{") for part, given in zip(parts, wanted, strict=True)
        )
        if fits:
            found |= {method.upper() for method in item}
    return found


def field_problem(fault: Mapping[str, Any]) -> FieldProblem:
    """One fault of validation in words: the field's path, what is wrong, what would be right."""
    path = ".".join(str(part) for part in fault["loc"] if part not in _NOT_FIELDS)
    if fault["type"] == "extra_forbidden":
        name = str(fault["loc"][-1])
        close = difflib.get_close_matches(name, _FIELD_NAMES, n=1)
        remedy = f"Did you mean {close[0]!r}?" if close else f"Remove {name!r}."
        return FieldProblem(field=path, reason=f"unknown field {name!r}", remedy=remedy)
    if fault["type"].startswith("union_tag"):
        name = ".".join(filter(None, [path, "kind"]))
        given = fault.get("ctx", {}).get("tag")
        remedy = f"Use one of {', '.join(sorted(_KINDS))}."
        return FieldProblem(field=name, reason=f"unknown kind {given!r}" if given else "missing", remedy=remedy)
    if isinstance(fault.get("input"), bytes):
        reason = "not taken for JSON"
        return FieldProblem(field="body", reason=reason, remedy="Send the header Content-Type: application/json.")
    return FieldProblem(field=path or "body", reason=str(fault["msg"]))
