"""What an operation of the HTTP API is: its path, what it accepts and returns, and how it can fail.

`operations` and `run_operations` declare one for each, and `factory` and `openapi` read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairlead.authorization.policy import Verb

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Param:
    """A query parameter or header. `schema` is JSON Schema."""

    name: str
    text: str
    schema: dict[str, Any]
    where: str = "query"


@dataclass(frozen=True, slots=True)
class Operation:
    """`gives` is the type of the answer with `status`, None if it has no content, and `answer` describes that answer.
    `faults` are the statuses of problems in addition to those that every operation can return. `needs` are the verbs of
    which a role of the caller must allow one, on whichever agent; the handler checks the agent. Without verbs any role
    will do, and with None any valid credential."""

    method: str
    path: str
    name: str
    text: str
    answer: str
    status: int
    gives: type | None
    takes: type | None = None
    octets: bool = False
    """The request body is bytes, not JSON."""
    streams: bool = False
    """The answer is a stream of results, as NDJSON or as server-sent events."""
    params: tuple[Param, ...] = ()
    faults: tuple[int, ...] = ()
    needs: tuple[Verb, ...] | None = ()
    instead: type | None = None
    """The type of the answer with 200 to a request that asks for nothing to be done."""

    @property
    def query(self) -> tuple[str, ...]:
        """The names of the query parameters."""
        return tuple(param.name for param in self.params if param.where == "query")


WHOLE_NUMBER = {"type": "integer", "minimum": 0, "maximum": 1 << 53, "default": 0}
FLAG = {"type": "boolean", "default": False}
TEXT = {"type": "string"}
EVENT_ID = {**TEXT, "pattern": "^[0-9]{1,15}$"}
POSITION = "^[0-9]{1,15}-[0-9]{1,15}$"
AGENT_ID = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
LATER = (503,)
KNOWN = (404, *LATER)
APPROVAL = Param(
    "approval", "The id of an approval of exactly this request. It takes the place of an Idempotency-Key.",
    {**TEXT, "maxLength": 32},
)  # fmt: skip
