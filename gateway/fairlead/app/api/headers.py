"""Header fields of a request, read from the raw list of its ASGI scope.

The handlers of commands and `request_body` call it. Starlette's `Headers` decodes every name that it passes for each
look-up, which for the five look-ups of a posted command costs a sixth of all that the API does for it.
"""

from __future__ import annotations

from starlette.requests import Request


def find_header(request: Request, name: bytes) -> str | None:
    """Return the value of the first header with that name, or None. `name` must be in lower case."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None
