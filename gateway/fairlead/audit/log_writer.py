"""Writes the audit log of a node: events wait until they are in the file, many of them with one write.

The API awaits `write` before it does what must be audited, and the node runs the writer. What cannot be written within
a deadline is refused. After an error the file is cut back to its last whole line, and the next event tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fairlead.audit.records import LINE_LIMIT, RECOVERED, AuditEvent, Head, InvalidLine, chain, parse_line
from fairlead.audit.segments import first_number, head_path, lines, read_head, segment_path, segments
from fairlead.errors import ConfigError, Unavailable

logger = logging.getLogger(__name__)

WAITING: Final = 10_000
"""Events, at some 400 bytes each: half a second of the most that a node accepts."""
TIMEOUT: Final = 5.0
"""Seconds until an event that is not written is refused."""
SYNC_INTERVAL: Final = 1.0
"""Seconds between two calls of fsync with the policy `everysec`, which has the name and meaning of Redis's."""


class AuditUnavailable(Unavailable):
    """The audit log cannot be written, so nothing is done that must be in it."""

    code = "audit_unavailable"


class AuditLogWriter:
    """`fsync` is always, everysec or no. A file that has reached `size` bytes is followed by the next one."""

    def __init__(self, folder: Path, node: str, fsync: str, size: int) -> None:
        self._folder = folder
        self._node = node
        self._fsync = fsync
        self._size = size
        self._file = self._head_file = -1
        self._written = 0
        self._head = Head()
        self._synced = 0.0
        self._unsynced = False
        self._waiting: list[tuple[AuditEvent, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self.lines = 0
        self.failures = 0

    def open(self) -> None:
        """Find the end of the log. Raises ConfigError if the folder cannot be used."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            event = self._recover()
            if event is not None:
                logger.error("the audit log in %s does not end where it should: %s", self._folder, event.reason)
                self._append([event])
        except OSError as e:
            raise ConfigError(
                f"the audit log in {self._folder} cannot be written ({e.strerror or e}): check the folder and its "
                "permissions"
            ) from e

    async def write(self, event: AuditEvent) -> None:
        """Returns when the event is in the log. Raises AuditUnavailable."""
        if len(self._waiting) >= WAITING:
            raise AuditUnavailable(
                f"{WAITING} events wait for the audit log: nothing more is accepted until it is written"
            )
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, written))
        self._wake.set()
        try:
            async with asyncio.timeout(TIMEOUT):
                await written
        except TimeoutError as e:
            raise AuditUnavailable(f"the audit log was not written within {TIMEOUT:g} s: try again later") from e

    async def run(self) -> None:
        """Write what waits. Never returns."""
        while True:
            try:
                async with asyncio.timeout(SYNC_INTERVAL if self._unsynced else None):
                    await self._wake.wait()
            except TimeoutError:  # nothing follows the last lines, which are not on the disk yet
                await self._sync_rest()
                continue
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            # Whoever does not wait any longer was told that nothing was done.
            wanted = [(event, written) for event, written in batch if not written.done()]
            error: AuditUnavailable | None = None
            try:
                await asyncio.to_thread(self._append, [event for event, _ in wanted])
            except OSError as e:
                self.failures += len(wanted)
                error = AuditUnavailable(
                    f"the audit log in {self._folder} cannot be written ({e.strerror or e}), so nothing is done that "
                    "must be in it (free space on its disk, or check its permissions)"
                )
                logger.error("%s", error.message)
            for _, written in wanted:
                if written.done():
                    continue
                if error is None:
                    written.set_result(None)
                else:
                    written.set_exception(error)

    async def _sync_rest(self) -> None:
        try:
            await asyncio.to_thread(os.fdatasync, self._file)
        except OSError as e:
            logger.error("the audit log in %s cannot be forced to the disk: %s", self._folder, e.strerror or e)
        self._unsynced = False

    def close(self) -> None:
        for descriptor in (self._file, self._head_file):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.fsync(descriptor)
                os.close(descriptor)
        self._file = self._head_file = -1

    def _append(self, events: list[AuditEvent]) -> None:
        """Write the events in one write. Raises OSError; then none of them is in the file."""
        if self._file < 0 or self._written >= self._size:
            self._next_file()
        head, now = self._head, datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        made = []
        for event in events:
            line, head = chain(event, head, now, self._node)
            made.append(line)
        data = b"".join(made)
        try:
            if (count := os.write(self._file, data)) < len(data):
                raise OSError(errno.ENOSPC, f"only {count} of {len(data)} bytes could be written")
            os.pwrite(self._head_file, head.padded(), 0)
            self._sync()
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._written)
                os.pwrite(self._head_file, self._head.padded(), 0)
            raise
        self._written += len(data)
        self._head = head
        self.lines += len(events)

    def _sync(self) -> None:
        due = self._fsync == "everysec" and time.monotonic() - self._synced >= SYNC_INTERVAL
        if self._fsync == "always" or due:
            os.fdatasync(self._file)
            self._synced = time.monotonic()
            self._unsynced = False
        elif self._fsync == "everysec":
            self._unsynced = True

    def _next_file(self) -> None:
        """Close the file and begin the next one, in which the chain goes on."""
        if self._file >= 0:
            os.fdatasync(self._file)
            os.close(self._file)
            self._file = -1
        path = segment_path(self._folder, self._node, self._head.seq + 1)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._written = os.fstat(self._file).st_size
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _recover(self) -> AuditEvent | None:
        """Find the last valid line and go on after it. Returns what to record if something is missing there: what a
        crash has cut off, or what somebody has removed."""
        self._lock()
        expected = read_head(self._folder, self._node) or Head()
        paths = segments(self._folder).get(self._node, [])
        found, torn, changed = Head(), b"", False
        for path in reversed(paths):
            found, rest, other = _last_line(path, expected)
            torn, changed = torn or rest, changed or other
            if found.seq:
                break
        if found.seq:
            self._head = found
        else:
            self._head = expected
        if paths and not torn:
            self._file = os.open(paths[-1], os.O_WRONLY | os.O_APPEND)
            self._written = os.fstat(self._file).st_size
        elif torn and first_number(paths[-1]) == self._head.seq + 1:
            # It has no valid line, and the next file has its name. Otherwise it stays, and a new one begins after it.
            paths[-1].rename(paths[-1].with_suffix(".torn"))
        if torn:
            digest = hashlib.sha256(torn).hexdigest()
            reason = f"{len(torn)} bytes after line {self._head.seq} are no valid lines (SHA-256 {digest})"
        elif expected.seq > found.seq:
            reason = f"lines {found.seq + 1} to {expected.seq} are missing"
        elif changed:
            reason = f"line {expected.seq} is not the one that was written"
        else:
            return None
        return AuditEvent("node", "node", RECOVERED, "allowed", reason)

    def _lock(self) -> None:
        """Lock the log until the process ends: two writers would each go on from the same line, and what one of them
        cuts off after an error could be the lines of the other."""
        self._head_file = os.open(head_path(self._folder, self._node), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._head_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            self.close()
            raise ConfigError(
                f"another process writes the audit log of {self._node} in {self._folder}: expected one node of this "
                "name (stop the other one, or give this one another name or folder)"
            ) from e


def _last_line(path: Path, expected: Head) -> tuple[Head, bytes, bool]:
    """The last valid line of a file, what follows it, and whether there is another line in the place of `expected`."""
    head, rest, changed = Head(), b"", False
    for _, raw, complete in lines(path):
        try:
            line = parse_line(raw)
        except InvalidLine:
            rest += raw[:LINE_LIMIT]
            continue
        if complete:
            head, rest = Head(line.seq, line.hash), b""
            changed = changed or (head.seq == expected.seq and head != expected)
        else:
            rest += raw
    return head, rest, changed
