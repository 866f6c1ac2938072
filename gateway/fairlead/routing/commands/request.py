"""What the API hands to routing when a command is posted, and what it gets back.

Made by the API (`CommandRequest`) and by `dispatch` (`AcceptedCommand`). It checks nothing: the API has.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.fleet.schema import TargetState
from fairlead.routing.followers import Follower


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command as the platform posted it, checked. Times in ms; `queue` is None for on_offline: fail."""

    agent: str
    method: str
    payload: bytes
    deadline: int
    lane: str
    queue: int | None
    retry: str
    retain: str
    traceparent: str
    key_digest: str
    body_digest: str


@dataclass(frozen=True, slots=True)
class AcceptedCommand:
    """The command stands in Redis. `replayed`: it did so before, under the same Idempotency-Key.

    `follower` is told when there are results, if the caller wanted to follow and the command is new; it belongs
    to `ResultReader.read` then.
    """

    id: str
    state: TargetState
    presence: str
    why: str
    replayed: bool = False
    follower: Follower | None = None
