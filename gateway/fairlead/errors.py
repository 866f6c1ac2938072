"""The errors that packages raise to one another, as one tree. This module imports nothing from the project, so that
every package may import it.

    FairleadError
    ├── ConfigError            settings, flags or a file are wrong; the process does not start
    ├── InvalidRequest         the caller's request is wrong; the message names the field and the limit
    │   ├── Unauthorized       no or wrong credential
    │   ├── Forbidden          a Host or an Origin that this port does not serve
    │   │   ├── PermissionDenied  no role of the caller allows what it asked for
    │   │   │   └── ApprovalRequired  a second person has to approve it first
    │   │   └── EnrolmentDenied  an administrator has denied the enrolment
    │   ├── ApprovalPending    the enrolment waits for an administrator
    │   ├── AgentUnknown       no agent with that id was ever seen
    │   ├── CommandUnknown     no command with that id exists, or its results have expired
    │   ├── ResultsTrimmed     the results were removed because they have been read
    │   ├── ResultsDropped     the results were dropped after the end of the command, to make room
    │   ├── RecordExpired      the command of this Idempotency-Key has ended, and its record has been removed
    │   ├── IdempotencyConflict  the same Idempotency-Key was used with another body
    │   ├── InputConflict      another input chunk was stored under the same number
    │   └── AgentOnline        the agent has a link, and the request requires that it has none
    ├── Unavailable            the request is valid but cannot be served now: temporary
    │   ├── RecordLost         the record that the caller followed is gone: not temporary, not the caller's fault
    │   ├── BusUnavailable     Redis does not answer
    │   │   ├── StoreFull      Redis has too little memory left for this request
    │   │   ├── NotAnswered    Redis was sent the request and may have executed it
    │   │   └── OutcomeUnknown a command may have been accepted although its caller got no answer
    │   ├── Rebuilding         Redis has lost its data, and the linked agents are being registered again
    │   ├── AgentOffline       the agent has no link
    │   ├── NodeBusy           this node is draining or full
    │   ├── QuotaExceeded      the tenant has, or does, as much as it may
    │   └── Throttled          too many wrong credentials from this address, or enrolments with one token
    ├── ProtocolViolation      the other end of a link broke the protocol; carries the close code to send
    └── ConnectionRefused      (client side) the gateway refused the upgrade or could not be reached

`code` is stable and meant for programs; the message is meant for people. `temporary` says whether the same request
may succeed later. Errors know neither HTTP statuses nor exit codes: the API and the command line assign them.
"""

from __future__ import annotations

from typing import ClassVar


class FairleadError(Exception):
    """Base class of all errors that Fairlead raises. `details` holds additional values for programs."""

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


class PermissionDenied(Forbidden):
    """The credential is good, but no role allows this. `details` has the `subject`."""

    code = "permission_denied"


class ApprovalRequired(PermissionDenied):
    """The method needs the approval of a second person. `details` has the `approval`, the id of the request for it, and
    its `state`."""

    code = "approval_required"


class ApprovalPending(InvalidRequest):
    """An enrolment waits for an administrator. `details` has the thumbprint of its `key`."""

    code = "approval_pending"


class EnrolmentDenied(Forbidden):
    """An administrator has denied the enrolment of this key."""

    code = "enrolment_denied"


class AgentUnknown(InvalidRequest):
    code = "agent_unknown"


class CommandUnknown(InvalidRequest):
    code = "command_unknown"


class ResultsTrimmed(InvalidRequest):
    """The results were retained as a window and have been removed because they were read."""

    code = "results_trimmed"


class ResultsDropped(InvalidRequest):
    """The results were dropped after the end of the command, to make room. `details` has the offset `first`, at which
    the end of the command is still to be read."""

    code = "results_dropped"


class RecordExpired(InvalidRequest):
    """The command or run that was posted with this Idempotency-Key has ended, and its record has been removed."""

    code = "record_expired"


class IdempotencyConflict(InvalidRequest):
    code = "idempotency_conflict"


class InputConflict(InvalidRequest):
    """An input chunk was posted with a number under which different bytes are already stored."""

    code = "input_conflict"


class AgentOnline(InvalidRequest):
    code = "agent_online"


class Unavailable(FairleadError):
    code = "unavailable"
    temporary = True


class RecordLost(Unavailable):
    """A command's record disappeared while a caller followed it. The outcome of the command is unknown."""

    code = "record_lost"
    temporary = False


class BusUnavailable(Unavailable):
    """Redis did not answer or refused the request. Nothing was executed, unless the error is a `NotAnswered`."""

    code = "bus_unavailable"


class WritesRefused(BusUnavailable):
    """Redis answers, and refuses whatever writes, from every node: it cannot write to its disk, or has too few
    replicas. Nothing was executed."""


class StoreFull(BusUnavailable):
    """Redis answers, and has too little memory left for this request. `retry_after` in `details` is in seconds."""

    code = "store_full"


class NotConfirmed(BusUnavailable):
    """No replica, or not the disk, confirms what Redis stores, as the setting `durability` demands. Nothing was
    executed."""

    code = "not_confirmed"


class NotAnswered(BusUnavailable):
    """Redis was sent the request and did not answer. It may have executed the request, or may do so later."""


class OutcomeUnknown(BusUnavailable):
    """It is unknown whether a command was accepted. `details` has its `id`, to look it up when Redis answers again."""

    code = "outcome_unknown"


class Rebuilding(Unavailable):
    """Redis has lost its data. It does not know all linked agents until the nodes have claimed them again."""

    code = "rebuilding"


class AgentOffline(Unavailable):
    code = "agent_offline"


class NodeBusy(Unavailable):
    code = "node_busy"


class QuotaExceeded(Unavailable):
    """`details` has the `quota`, its `limit`, and `retry_after` in seconds."""

    code = "quota_exceeded"


class Throttled(Unavailable):
    """Raised for requests with a wrong credential, and for more enrolments than a token allows in a minute.
    `retry_after` in `details` is in seconds."""

    code = "throttled"


class ProtocolViolation(FairleadError):
    """`close_code` is the code with which the end that detects the violation closes the connection."""

    code = "protocol_violation"

    def __init__(self, close_code: int, message: str) -> None:
        super().__init__(message, close_code=close_code)
        self.close_code = close_code


class ConnectionRefused(FairleadError):
    """The gateway could not be reached (`status` is 0) or refused the upgrade with an HTTP status.

    `retry_after` is in seconds; None if the gateway gave no such header.
    """

    code = "connection_refused"

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None, body: bytes = b"") -> None:
        super().__init__(message, status=status)
        self.status = status
        self.retry_after = retry_after
        self.body = body
