"""Every error that crosses a room, as one tree. Imports nothing, so that every room may import it.

    FairleadError
    ├── ConfigError            settings, flags or a file are wrong; the process does not start
    ├── InvalidRequest         the caller's request is wrong; the message names the field and the limit
    │   ├── Unauthorized       no or wrong credential
    │   ├── Forbidden          a Host or an Origin that this port does not serve
    │   ├── AgentUnknown       no agent of that id was ever seen
    │   ├── CommandUnknown     no command of that id, or its results have expired
    │   ├── ResultsTrimmed     results that are gone because they were read
    │   ├── RecordExpired      the command of this Idempotency-Key has ended, and its record is gone
    │   ├── IdempotencyConflict  the same Idempotency-Key with another body
    │   ├── InputConflict      an input chunk of a number that another chunk has had
    │   └── AgentOnline        the agent holds a link, and the request is for one that does not
    ├── Unavailable            right request, wrong moment: temporary
    │   ├── RecordLost         what was followed is gone: not temporary, and not the caller's fault
    │   ├── BusUnavailable     Redis does not answer
    │   │   ├── NotAnswered    it was sent the request, which it may have executed
    │   │   └── OutcomeUnknown a command that may have been taken in although its caller got no answer
    │   ├── Rebuilding         Redis has lost its data, and the agents that are linked are being written down again
    │   ├── AgentOffline       the agent holds no link
    │   ├── NodeBusy           this node is draining or full
    │   └── Throttled          too many wrong credentials from this address
    ├── ProtocolViolation      the other end of a link broke the protocol; carries the close code to send
    └── ConnectionRefused      (client side) the gateway refused the upgrade or could not be reached

`code` is stable and meant for programs, the message for people. `temporary` says whether the same request
may succeed later. HTTP statuses and exit codes are given at the outermost room, never here.
"""

from __future__ import annotations

from typing import ClassVar


class FairleadError(Exception):
    """Base of all errors raised on purpose. `details` hold what a program may want to read."""

    code: ClassVar[str] = "internal"
    temporary: ClassVar[bool] = False

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class ConfigError(FairleadError):
    code = "config_invalid"


class InvalidRequest(FairleadError):
    code = "invalid_request"


class Unauthorized(InvalidRequest):
    code = "unauthorized"


class Forbidden(InvalidRequest):
    code = "forbidden"


class AgentUnknown(InvalidRequest):
    code = "agent_unknown"


class CommandUnknown(InvalidRequest):
    code = "command_unknown"


class ResultsTrimmed(InvalidRequest):
    """Results that were retained as a window, and have been read."""

    code = "results_trimmed"


class RecordExpired(InvalidRequest):
    """The command that was posted under this Idempotency-Key has ended, and its record has been removed."""

    code = "record_expired"


class IdempotencyConflict(InvalidRequest):
    code = "idempotency_conflict"


class InputConflict(InvalidRequest):
    """An input chunk was posted under a number under which other octets were stored before."""

    code = "input_conflict"


class AgentOnline(InvalidRequest):
    code = "agent_online"


class Unavailable(FairleadError):
    code = "unavailable"
    temporary = True


class RecordLost(Unavailable):
    """A command's record is gone while somebody followed it: what became of the command is not known."""

    code = "record_lost"
    temporary = False


class BusUnavailable(Unavailable):
    """Redis did not answer, or refused. Nothing was executed, except where the error is a `NotAnswered`."""

    code = "bus_unavailable"


class NotAnswered(BusUnavailable):
    """Redis was sent the request and did not answer it: it may have executed it, or may do so later."""


class OutcomeUnknown(BusUnavailable):
    """Whether a command was taken in is not known. `details` has its `id`, which tells once Redis answers again."""

    code = "outcome_unknown"


class Rebuilding(Unavailable):
    """Redis has lost its data: whom it knows is not all that are linked, until they have been claimed again."""

    code = "rebuilding"


class AgentOffline(Unavailable):
    code = "agent_offline"


class NodeBusy(Unavailable):
    code = "node_busy"


class Throttled(Unavailable):
    """Raised for a wrong credential alone. `retry_after` in its details is in seconds."""

    code = "throttled"


class ProtocolViolation(FairleadError):
    """`close_code` is what the finder of the violation closes the connection with."""

    code = "protocol_violation"

    def __init__(self, close_code: int, message: str) -> None:
        super().__init__(message, close_code=close_code)
        self.close_code = close_code


class ConnectionRefused(FairleadError):
    """The gateway could not be reached (`status` is 0) or refused the upgrade with an HTTP status.

    `retry_after` is in seconds, None when the gateway gave none.
    """

    code = "connection_refused"

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None, body: bytes = b"") -> None:
        super().__init__(message, status=status)
        self.status = status
        self.retry_after = retry_after
        self.body = body
