"""Logging: text for people or JSON for machines, one line for each event, with the ids that connect related lines.

The command line configures it before anything else runs. Events that may occur by the thousand, as when a network comes
back, go through a `LogAggregator`: the first event of a kind is logged at once, and the others within the same second
become one line with their number.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from datetime import UTC, datetime

import msgspec

from fairlead.text import plain as plain  # for callers that log text from other parties

PERIOD = 1.0
"""The longest period in seconds that one line summarizes."""
DETAILS = 20
"""The number of kinds of detail that one line counts separately. All further kinds are counted as "other"."""

Ids = dict[str, str | int]


def ids(*, agent: str = "", session: str = "", command: str = "", trace: str = "") -> dict[str, Ids]:
    """The argument `extra` of a log call: the ids that the line is about. Empty ids are left out."""
    named = {"agent": agent, "session": session, "command": command, "trace": trace}
    return {"ids": {name: value for name, value in named.items() if value}}


def configure_logging(level: str, form: str, node: str = "") -> None:
    """Write all lines to stderr, as `text` or `json`. Workers share one stream, so each names its node in its lines."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter(node))
    else:
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s %(levelname)s {node and node.replace('%', '%%') + ' '}%(name)s %(message)s")
        )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message and the ids. An exception is a string in that object."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._node:
            entry["node"] = self._node
        entry.update(getattr(record, "ids", {}))
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        return msgspec.json.encode(entry, enc_hook=str).decode()


class LogAggregator:
    """Logs many events of a kind as one line per second. It belongs to one event loop; `aclose` logs what is left."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: dict[str, Counter[str]] = {}
        """For each kind that was logged within the last second, the number of further events by detail."""
        self._levels: dict[str, int] = {}
        """The level of each of these kinds, at which the further events are logged too."""
        self._timer: asyncio.TimerHandle | None = None

    def note(self, kind: str, detail: str, level: int, text: str, *args: object, **about: str) -> None:
        """Log or count one event. `kind` and `detail` are from small fixed sets; the rest describes this one event."""
        counts = self._counts.get(kind)
        if counts is None:
            self._counts[kind], self._levels[kind] = Counter(), level
            self._logger.log(level, text, *args, extra=ids(**about))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(PERIOD, self._report)
        elif self._logger.isEnabledFor(level):
            counts[detail if detail in counts or len(counts) < DETAILS else "other"] += 1

    def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell()
        self._counts.clear()

    def _report(self) -> None:
        self._tell()
        # A kind without further events is removed, so that its next event is logged at once.
        self._counts = {kind: Counter() for kind, counts in self._counts.items() if counts}
        self._timer = asyncio.get_running_loop().call_later(PERIOD, self._report) if self._counts else None

    def _tell(self) -> None:
        for kind, counts in self._counts.items():
            if count := counts.total():
                details = ", ".join(f"{n} {detail}" for detail, n in counts.most_common())
                self._logger.log(
                    self._levels[kind],
                    "%s: %d more in %g s (%s)",
                    kind,
                    count,
                    PERIOD,
                    details,
                    extra={"ids": {"event": kind, "count": count}},
                )
