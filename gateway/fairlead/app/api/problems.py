"""Problem documents (RFC 9457), and the one table from errors to HTTP statuses.

The API answers every failed request with a problem document. `code` is stable and meant for programs; `detail` says
what was wrong, what was expected and what to do. Further members come from the details of the error.
"""

from __future__ import annotations

import logging

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from fairlead import errors
from fairlead.errors import FairleadError

logger = logging.getLogger(__name__)

STATUS: dict[type[FairleadError], tuple[int, str]] = {
    errors.Unauthorized: (401, "Unauthorized"),
    errors.Forbidden: (403, "Forbidden"),
    errors.PermissionDenied: (403, "Not permitted"),
    errors.ApprovalRequired: (403, "Approval required"),
    errors.EnrolmentDenied: (403, "Enrolment denied"),
    errors.ApprovalPending: (202, "Approval pending"),
    errors.AgentUnknown: (404, "Unknown agent"),
    errors.CommandUnknown: (404, "Unknown command"),
    errors.ResultsTrimmed: (410, "Results have been trimmed"),
    errors.ResultsDropped: (410, "Results have been dropped"),
    errors.RecordExpired: (410, "Command has ended and its record has expired"),
    errors.InputConflict: (409, "Input chunk repeated with different bytes"),
    errors.AgentOnline: (409, "Agent is online"),
    errors.IdempotencyConflict: (422, "Idempotency-Key used with another body"),
    errors.InvalidRequest: (422, "Invalid request"),
    errors.OutcomeUnknown: (503, "Outcome unknown"),
    errors.BusUnavailable: (503, "Redis is unavailable"),
    errors.Rebuilding: (503, "Rebuilding after data loss"),
    errors.AgentOffline: (409, "Agent is offline"),
    errors.NodeBusy: (503, "Node is busy"),
    errors.Throttled: (429, "Too many requests"),
    errors.QuotaExceeded: (429, "Quota exceeded"),
    errors.Unavailable: (503, "Unavailable"),
}


class MalformedBody(errors.InvalidRequest):
    """The body is not JSON, or has a duplicate member."""

    code = "malformed_body"


class BodyTooLarge(errors.InvalidRequest):
    """The body is larger than the operation accepts; it was not parsed."""

    code = "body_too_large"


class NotFound(errors.InvalidRequest):
    """The path does not exist."""

    code = "not_found"


class MethodNotAllowed(errors.InvalidRequest):
    """The path does not support the method."""

    code = "method_not_allowed"


def status_of(error: FairleadError) -> tuple[int, str]:
    """The HTTP status and title of an error, by the nearest of its base classes in the table."""
    if isinstance(error, MalformedBody):
        return 400, "Malformed body"
    if isinstance(error, BodyTooLarge):
        return 413, "Body too large"
    if isinstance(error, NotFound):
        return 404, "Not found"
    if isinstance(error, MethodNotAllowed):
        return 405, "Method not allowed"
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500, "Internal error"


def document(error: FairleadError, status: int, title: str) -> bytes:
    return msgspec.json.encode(
        {
            "type": f"urn:fairlead:error:{error.code}",
            "title": title,
            "status": status,
            "code": error.code,
            "detail": error.message,
            "temporary": error.temporary,
            **error.details,
        }
    )


def problem(error: FairleadError, status: int = 0) -> Response:
    """The answer to a request that failed with `error`; `status` overrides the one in the table."""
    usual, title = status_of(error)
    status = status or usual
    headers = {}
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = str(error.details["allow"])
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status == 503:
        headers["retry-after"] = "5" if isinstance(error, errors.Rebuilding) else "1"
    if "retry_after" in error.details:
        headers["retry-after"] = str(error.details["retry_after"])
    body = document(error, status, title)
    return Response(body, status, headers, media_type="application/problem+json")


def expected_problem(scope: Scope, error: FairleadError) -> Response:
    """The answer to a request that failed with one of our errors."""
    if status_of(error)[0] == 500:
        logger.error("%s %s failed: %s", scope["method"], scope["path"], error.message, exc_info=error)
    return problem(error)


def unexpected_problem(scope: Scope, error: Exception) -> Response:
    """The answer to a request that met a defect in the gateway: it reveals nothing about the defect."""
    logger.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
    return problem(FairleadError("internal error: see the gateway's log"))
