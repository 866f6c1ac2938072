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

from fairlead.text import plain as plain  # for those whose words go into these lines

PERIOD = 1.0
"""Seconds that one line stands for, at most."""
DETAILS = 20
"""Kinds of detail that one line tells apart; the rest is summed up as other."""

Ids = dict[str, str | int]


def ids(*, agent: str = "", session: str = "", command: str = "", trace: str = "") -> dict[str, Ids]:
    """For `extra` of a log call: what the line is about. Empty ones are left out."""
    named = {"agent": agent, "session": session, "command": command, "trace": trace}
    return {"ids": {name: value for name, value in named.items() if value}}


def configure_logging(level: str, form: str, node: str = "") -> None:
    """All lines go to stderr, as `text` or `json`. Workers, whose lines meet in one stream, name their node."""
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
    """One object a line: time, level, logger, message, then the ids; an exception is text in it, not lines behind."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._node:
            told["node"] = self._node
        told.update(getattr(record, "ids", {}))
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            told["stack"] = record.stack_info
        return msgspec.json.encode(told, enc_hook=str).decode()


class LogAggregator:
    """Many events of a kind as one line a second. Owned by one event loop; `aclose` tells what was not told yet."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: dict[str, Counter[str]] = {}
        """Of the kinds that had a line within the last second."""
        self._timer: asyncio.TimerHandle | None = None

    def note(self, kind: str, detail: str, level: int, text: str, *args: object, **about: str) -> None:
        """`kind` and `detail` are words of ours, few of them; `text`, `args` and the ids are of this one event."""
        counts = self._counts.get(kind)
        if counts is None:
            self._counts[kind] = Counter()
            self._logger.log(level, text, *args, extra=ids(**about))
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(PERIOD, self._turn)
        elif self._logger.isEnabledFor(level):
            counts[detail if detail in counts or len(counts) < DETAILS else "other"] += 1

    def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell()
        self._counts.clear()

    def _turn(self) -> None:
        self._tell()
        # What had no more than its line is quiet again: the next of it is a line at once.
        self._counts = {kind: Counter() for kind, counts in self._counts.items() if counts}
        self._timer = asyncio.get_running_loop().call_later(PERIOD, self._turn) if self._counts else None

    def _tell(self) -> None:
        for kind, counts in self._counts.items():
            if count := counts.total():
                told = ", ".join(f"{n} {detail}" for detail, n in counts.most_common())
                self._logger.info(
                    "%s: %d more in %g s (%s)",
                    kind,
                    count,
                    PERIOD,
                    told,
                    extra={"ids": {"event": kind, "count": count}},
                )
