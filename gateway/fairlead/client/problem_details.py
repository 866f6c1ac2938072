"""Turns the API's problem documents (RFC 9457) and error codes into the errors of `fairlead.errors`.

Used by `transport` for answers and by `result_lines` for streams. For a code that this client does not know, the status
and `temporary` decide, so that a newer gateway's errors still lead to the right exit code.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.errors import (
    AgentOffline,
    AgentOnline,
    AgentUnknown,
    ApprovalRequired,
    BusUnavailable,
    CommandUnknown,
    FairleadError,
    Forbidden,
    IdempotencyConflict,
    InputConflict,
    InvalidRequest,
    NodeBusy,
    OutcomeUnknown,
    PermissionDenied,
    QuotaExceeded,
    Rebuilding,
    RecordExpired,
    RecordLost,
    ResultsDropped,
    ResultsTrimmed,
    Throttled,
    Unauthorized,
    Unavailable,
)

_BY_CODE: Mapping[str, type[FairleadError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        Forbidden,
        PermissionDenied,
        ApprovalRequired,
        Unauthorized,
        AgentUnknown,
        CommandUnknown,
        ResultsTrimmed,
        ResultsDropped,
        RecordExpired,
        IdempotencyConflict,
        InputConflict,
        AgentOnline,
        Unavailable,
        RecordLost,
        BusUnavailable,
        OutcomeUnknown,
        Rebuilding,
        AgentOffline,
        NodeBusy,
        QuotaExceeded,
        Throttled,
    )
}


class _ProblemBody(msgspec.Struct):
    title: str = ""
    code: str = ""
    detail: str = ""
    temporary: bool = False
    field: str | None = None
    approval: str | None = None
    state: object = None


def error_class(code: str, otherwise: type[FairleadError]) -> type[FairleadError]:
    return _BY_CODE.get(code, otherwise)


def error_of_answer(address: str, status: int, body: bytes) -> FairleadError:
    """The error that an answer reports. Its details have the status, the code and the field."""
    try:
        document = msgspec.json.decode(body, type=_ProblemBody)
    except msgspec.MsgspecError:  # not from the gateway, but from something in front of it
        temporary = status in (429, 502, 503, 504)
        document = _ProblemBody(detail=f"{address} answered HTTP {status}", temporary=temporary)
    if document.temporary:
        otherwise: type[FairleadError] = Unavailable
    elif status in (401, 403):
        otherwise = Unauthorized
    else:
        otherwise = InvalidRequest if 400 <= status < 500 else FairleadError
    details: dict[str, object] = {"status": status, "code": document.code}
    if document.field is not None:
        details["field"] = document.field
    if document.approval is not None:
        details |= {"approval": document.approval, "state": document.state}
    return error_class(document.code, otherwise)(document.detail or document.title or f"HTTP {status}", **details)
