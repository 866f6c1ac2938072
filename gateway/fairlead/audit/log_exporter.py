"""Sends the lines of a node's audit log to a collector of OpenTelemetry, in order and from where it stopped.

The files of the log are its queue: it reads what the writer has written, a bounded batch at a time, and notes the last
line that the collector has accepted in `NODE.exported`. So a collector that is away loses nothing, and a restart sends
nothing twice but the batch that was under way. What cannot be sent is counted and stays in the files. The node runs it;
the thread pays for everything of OpenTelemetry, including its import.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fairlead.audit.log_reader import LogReader, StoredLine
from fairlead.audit.log_writer import AuditLogWriter
from fairlead.audit.records import Head
from fairlead.audit.segments import exported_path, read_head

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import ReadableLogRecord

logger = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds until new lines are looked for."""
TIMEOUT: Final = 5.0
"""Seconds for one request, including its retries."""
BACKOFF: Final = 30.0
"""The longest pause in seconds after a batch that was not accepted."""
FLUSH: Final = 3.0
"""Seconds to send the remaining lines when the node stops. What is left is sent after its next start."""

Value = str | int


class AuditLogExporter:
    def __init__(self, log: AuditLogWriter, endpoint: str, resource: Mapping[str, Value]) -> None:
        self._log = log
        self._endpoint = endpoint
        self._resource = dict(resource)
        self._reader = LogReader(log.folder, log.node)
        self._send: Callable[[Sequence[StoredLine]], bool] | None = None
        self._stepping = threading.Lock()
        """Held during a step: when the node stops, one may still be under way in its thread."""
        self._resumed = False
        self._accepted = 0
        """The last line that the collector has accepted."""
        self._failing = False
        self.exported = 0
        self.failures = 0
        """Batches that the collector did not accept."""
        self.missing = 0
        """Lines that were removed from the folder before they were sent."""

    @property
    def waiting(self) -> int:
        """Lines that the collector has not accepted yet."""
        return max(self._log.head.seq - self._accepted, 0)

    async def run(self) -> None:
        """Send what is written. Never returns."""
        failed = 0
        while True:
            more, good = await asyncio.to_thread(self._step)
            failed = 0 if good else failed + 1
            if failed:
                # A random half, so that the nodes of a fleet do not come back together.
                await asyncio.sleep(min(BACKOFF, 2.0 ** min(failed, 10)) * random.uniform(0.5, 1.0))
            elif not more:
                await asyncio.sleep(PAUSE)

    async def aclose(self) -> None:
        """Send what is left for at most FLUSH seconds. The log is closed, and nobody runs this any more."""
        try:
            async with asyncio.timeout(FLUSH):
                while (await asyncio.to_thread(self._step)) == (True, True):
                    pass
        except TimeoutError:
            pass
        if self.waiting:
            logger.warning(
                "%d lines of the audit log are not exported yet: they stay in %s and are sent after the next start",
                self.waiting, self._log.folder,
            )  # fmt: skip

    # -- in threads --------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Go on behind the line that was exported last."""
        noted = read_head(exported_path(self._log.folder, self._log.node)) or Head()
        if problem := self._reader.seek(noted):
            logger.error("the export of the audit log goes on at line %d: %s", self._reader.at.seq + 1, problem)
        self._accepted = self._reader.at.seq
        self._resumed = True

    def _step(self) -> tuple[bool, bool]:
        """Send one batch. Returns whether there was one, and whether all is well."""
        with self._stepping:
            return self._send_batch()

    def _send_batch(self) -> tuple[bool, bool]:
        before, lines = self._reader.at, list[StoredLine]()
        try:
            if not self._resumed:
                self._resume()
            if self._send is None:
                self._send = _sender(self._endpoint, self._resource)
            before = self._reader.at
            lines = self._reader.read(self._log.head.seq)
            if not lines:
                return False, True
            good = self._send(lines)
        except Exception as e:  # a disk that cannot be read, or whatever the exporter's libraries raise
            good = False
            logger.warning("exporting the audit log in %s failed: %s", self._log.folder, e)
        self._tell(good)
        if not good:
            self.failures += 1
            self._reader.back()
            return True, False
        self._accepted = self._reader.at.seq
        self._count(before, lines)
        self._note(self._reader.at)
        return True, True

    def _count(self, before: Head, lines: Sequence[StoredLine]) -> None:
        self.exported += len(lines)
        if gap := lines[-1].line.seq - before.seq - len(lines):
            self.missing += gap
            logger.error(
                "%d of the lines %d to %d of the audit log are not in %s any more and were never exported",
                gap, before.seq + 1, lines[-1].line.seq, self._log.folder,
            )  # fmt: skip

    def _note(self, head: Head) -> None:
        """Note the last line that was exported. If that fails, a restart sends some lines again."""
        path = exported_path(self._log.folder, self._log.node)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(file, head.padded(), 0)
            finally:
                os.close(file)
        except OSError as e:
            logger.warning("%s cannot be written: %s (a restart exports these lines again)", path, e.strerror or e)

    def _tell(self, good: bool) -> None:
        if good == self._failing:  # logged once at each change, not for each batch
            self._failing = not good
            if good:
                logger.info("the collector at %s accepts the audit log again", self._endpoint)
            else:
                logger.warning(
                    "the collector at %s does not accept the audit log: its lines stay in %s and are sent later",
                    self._endpoint, self._log.folder,
                )  # fmt: skip


def _sender(endpoint: str, resource: Mapping[str, Value]) -> Callable[[Sequence[StoredLine]], bool]:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs.export import LogRecordExportResult

    # These libraries log each failure of each batch and each retry; `_tell` logs the same once.
    for name in ("opentelemetry.exporter.otlp", "opentelemetry.exporter.http", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    otlp: OTLPLogExporter = OTLPLogExporter(endpoint, timeout=TIMEOUT)
    convert = _converter(resource)
    return lambda lines: otlp.export([convert(line) for line in lines]) is LogRecordExportResult.SUCCESS


def _converter(resource: Mapping[str, Value]) -> Callable[[StoredLine], ReadableLogRecord]:
    """Returns a function that makes a log record of a line. Its body is the line as it is in the file, so that the
    chain can be verified at the collector too."""
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    source, scope = Resource.create(dict(resource)), InstrumentationScope("fairlead.audit")

    def convert(stored: StoredLine) -> ReadableLogRecord:
        line = stored.line
        written = int(datetime.fromisoformat(line.time).timestamp() * 1000) * 1_000_000
        context = None
        if line.trace:
            span = SpanContext(int(line.trace, 16), 0, True, TraceFlags(0))
            context = set_span_in_context(NonRecordingSpan(span))
        attributes: dict[str, Value] = {
            f"fairlead.audit.{name}": value
            for name in ("node", "seq", "subject", "action", "outcome", "method", "agent", "selector", "command", "run")
            if (value := getattr(line, name))
        }
        severity = SeverityNumber.INFO if line.outcome == "allowed" else SeverityNumber.WARN
        record = LogRecord(
            timestamp=written, observed_timestamp=written, context=context, severity_text=severity.name,
            severity_number=severity, body=stored.raw.decode(), attributes=attributes, event_name="fairlead.audit",
        )  # fmt: skip
        return ReadableLogRecord(record, source, scope)

    return convert
