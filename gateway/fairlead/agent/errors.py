"""The error that handlers raise to end a command, and the errors of the journal."""

from __future__ import annotations

from fairlead.errors import FairleadError, Unavailable
from fairlead.wire.messages import Error, Scalar


class CommandError(FairleadError):
    """Raise it in a handler to end the command with an error code of your own.

    `temporary` tells the platform that the same command may succeed later; `details` are for programs.
    """

    def __init__(self, code: str, message: str, temporary: bool = False, **details: Scalar) -> None:
        super().__init__(message, **details)
        self.error_code = code
        self.is_temporary = temporary

    def __reduce__(self) -> tuple[object, ...]:
        # Child processes send it, and BaseException's own pickling loses the keyword arguments.
        return _restored, (self.error_code, self.message, self.is_temporary, self.details)

    def to_wire(self) -> Error:
        """The error as a message, cut to the protocol's limits: a handler's text must never break the link."""
        details: dict[str, Scalar] = {}
        for key, value in list(self.details.items())[:16]:
            plain = value if isinstance(value, bool | int | float | None) else _text(str(value), 1024)
            details[_text(key, 64) or "_"] = plain
        return Error(
            code=_text(self.error_code, 64) or "handler_failed",
            message=_text(self.message, 1024),
            temporary=self.is_temporary,
            details=details,
        )


class JournalFailed(Unavailable):
    """The journal could not write a record, so nothing was accepted, sent or begun."""

    code = "journal_failed"


class JournalFull(JournalFailed):
    """The journal has reached its size limit; the gateway has to store what is in it first."""

    code = "journal_full"


def _restored(code: str, message: str, temporary: bool, details: dict[str, Scalar]) -> CommandError:
    return CommandError(code, message, temporary, **details)


def _text(value: str, limit: int) -> str:
    """`value` without what UTF-8 cannot encode: file names may contain lone surrogates."""
    return value[:limit].encode("utf-8", "replace").decode()
