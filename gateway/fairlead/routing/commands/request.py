"""A command as the API passes it to `dispatch`, and what `dispatch` returns. Neither is checked here, because the API
has checked it."""

from __future__ import annotations

import msgspec

from fairlead.fleet.schema import TargetState
from fairlead.routing.followers import Follower


class CommandRequest(msgspec.Struct, frozen=True):
    """A command as the platform posted it. Times are in ms. `queue` is None for `on_offline: fail`."""

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
    """The digest of its Idempotency-Key and agent, "" if it has none."""
    body_digest: str
    subject: str = ""
    """Who posted it."""
    id: str = ""
    """The id that the caller has chosen and signed; "" if the gateway chooses it."""
    signature: bytes = b""
    content: str = ""
    """The name of the content that the agent may ask for."""


class DispatchedCommand(msgspec.Struct, frozen=True):
    """A command whose record is in Redis.

    `replayed` says that it was posted before, under the same Idempotency-Key. `follower` is notified of its results, if
    the caller wanted to follow and the command is new; pass it to `ResultReader.read`.
    """

    id: str
    state: TargetState
    presence: str
    why: str
    replayed: bool = False
    follower: Follower | None = None
