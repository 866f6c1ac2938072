"""The caller of a request of the API, as the guard has found out."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request

from fairlead.authorization.subject import Subject

SUBJECT: Final = "fairlead.subject"
"""The member of the ASGI scope."""


def caller(request: Request) -> Subject:
    found: Any = request.scope[SUBJECT]
    assert isinstance(found, Subject)
    return found
