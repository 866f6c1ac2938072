"""Header fields of a request, read from the raw list of its ASGI scope.

The handlers of commands and `request_body` call it. Starlette's `Headers` decodes every name that it passes in each
lookup. For the five lookups of a posted command, that is a sixth of the API's work.
"""

from __future__ import annotations

from starlette.requests import Request


def find_header(request: Request, name: bytes) -> str | None:
    """Return the value of the first header with that name, or None. `name` must be in lower case."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None
