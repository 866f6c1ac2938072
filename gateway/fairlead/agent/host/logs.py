"""The log of `fairlead agent run`: a line on stderr for each event, as text or as JSON.

Set up once by the command line. Programs that use the SDK configure their own logging, which this never touches.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from fairlead.text import plain

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """One line for each event, followed by the lines of its exception. Text from a gateway or a handler cannot begin a
    new line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = plain(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(plain, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """time (RFC 3339, UTC), level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode({key: _encodable(value) for key, value in line.items()}).decode()


def set_up(level: str, form: Literal["text", "json"] | str) -> None:
    """Configure logging for the whole process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
