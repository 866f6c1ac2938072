"""Header fields of a request, from the raw list of its ASGI scope, which becomes a dict at the first look-up.

The handlers of commands and `request_body` call it. Starlette's `Headers` decodes every name that it passes in each
lookup. For the five lookups of a posted command, that is a sixth of the API's work.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

FIRST: Final = "fairlead.headers"
"""The member of the ASGI scope that has the first value of each header, by its name."""


def find_header(request: Request, name: bytes) -> str | None:
    """Return the value of the first header with that name, or None. `name` must be in lower case."""
    scope = request.scope
    first: dict[bytes, bytes] | None = scope.get(FIRST)
    if first is None:
        first = scope[FIRST] = dict(reversed(scope["headers"]))
    value = first.get(name)
    return None if value is None else str(value, "latin-1")
