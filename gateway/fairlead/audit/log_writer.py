"""Writes the audit log of a node: events wait until they are in the file, many of them with one write.

The API awaits `write` before it does what must be audited, and the node runs the writer. What cannot be written within
a deadline is refused. After an error the file is cut back to its last whole line, and the next event tries again. With
a key, the head is signed from time to time, at the end of each file and at the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fairlead.audit.log_end import find_end
from fairlead.audit.records import AuditEvent, Head, chain
from fairlead.audit.segments import first_number, head_path, segment_path
from fairlead.audit.signed_head import SIGNED, sign_head
from fairlead.errors import ConfigError, Unavailable
from fairlead.signing.keys import PrivateKey

logger = logging.getLogger(__name__)

WAITING: Final = 10_000
"""Events, at some 400 bytes each: half a second of the most that a node accepts."""
TIMEOUT: Final = 5.0
"""Seconds until an event that is not written is refused."""
SYNC_INTERVAL: Final = 1.0
"""Seconds between two calls of fsync with the policy `everysec`, which has the name and meaning of Redis's."""
SIGN_AGAIN: Final = 5.0
"""Seconds until a head is signed again that could not be written."""


class AuditUnavailable(Unavailable):
    """The audit log cannot be written, so nothing is done that must be in it."""

    code = "audit_unavailable"


class AuditLogWriter:
    """`fsync` is always, everysec or no. A file that has reached `size` bytes is followed by the next one. `key` signs
    the head every `interval` seconds in which lines were written."""

    def __init__(
        self, folder: Path, node: str, fsync: str, size: int, key: PrivateKey | None = None, interval: float = 60.0
    ) -> None:
        self.folder = folder
        self.node = node
        self._fsync = fsync
        self._size = size
        self._key = key
        self._interval = interval
        self._sign_at: float | None = None
        """When the head is signed; None while no line follows the last signed one."""
        self._file = self._head_file = -1
        self._writing = threading.RLock()
        """Held by whoever writes: a thread may still be at it when the log is closed."""
        self._closed = False
        self._written = 0
        self._head = Head()
        self._synced = 0.0
        self._unsynced = False
        self._waiting: list[tuple[AuditEvent, asyncio.Future[None] | None]] = []
        self._wake = asyncio.Event()
        self.lines = 0
        self.failures = 0

    @property
    def head(self) -> Head:
        """The last line that was written."""
        return self._head

    def open(self) -> None:
        """Find the end of the log. Raises ConfigError if the folder cannot be used."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            event = self._recover()
            if event is not None:
                logger.error("the audit log in %s does not end where it should: %s", self.folder, event.reason)
                self._append([event])
            if self._key is not None and self._head.seq:
                self._sign(self._key)  # the last process may have had no time for it
        except OSError as e:
            raise ConfigError(
                f"the audit log in {self.folder} cannot be written ({e.strerror or e}): check the folder and its "
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

    def note(self, event: AuditEvent) -> None:
        """Have an event written that has happened already, so that nobody can be refused for it. If it cannot be
        written, it is counted as a failure."""
        if len(self._waiting) >= WAITING:
            self.failures += 1
            return
        self._waiting.append((event, None))
        self._wake.set()

    async def run(self) -> None:
        """Write what waits. Never returns."""
        while True:
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            if self._key is not None and self._sign_at is not None and time.monotonic() >= self._sign_at:
                await self._sign_in_time(self._key)
            if not self._waiting:
                if self._unsynced:  # nothing follows the last lines, which are not on the disk yet
                    await self._sync_rest()
                self._wake.clear()
                continue
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            # Whoever does not wait any longer was told that nothing was done.
            wanted = [(event, written) for event, written in batch if written is None or not written.done()]
            error: AuditUnavailable | None = None
            try:
                await asyncio.to_thread(self._append, [event for event, _ in wanted])
            except OSError as e:
                self.failures += len(wanted)
                error = AuditUnavailable(
                    f"the audit log in {self.folder} cannot be written ({e.strerror or e}), so nothing is done that "
                    "must be in it (free space on its disk, or check its permissions)"
                )
                logger.error("%s", error.message)
            for _, written in wanted:
                if written is None or written.done():
                    continue
                if error is None:
                    written.set_result(None)
                else:
                    written.set_exception(error)

    def _pause(self) -> float | None:
        """Seconds until there is something to do even if no event comes."""
        due = [SYNC_INTERVAL] if self._unsynced else []
        if self._sign_at is not None:
            due.append(max(self._sign_at - time.monotonic(), 0.0))
        return min(due, default=None)

    async def _sign_in_time(self, key: PrivateKey) -> None:
        try:
            await asyncio.to_thread(self._sign, key)
        except OSError as e:
            self.failures += 1
            self._sign_at = time.monotonic() + SIGN_AGAIN
            logger.error("the signed head cannot be written to the audit log in %s: %s", self.folder, e.strerror or e)

    async def _sync_rest(self) -> None:
        try:
            await asyncio.to_thread(os.fdatasync, self._file)
        except OSError as e:
            logger.error("the audit log in %s cannot be forced to the disk: %s", self.folder, e.strerror or e)
        self._unsynced = False

    def close(self) -> None:
        """Write what has happened and still waits, sign the last lines, and end. Of what is written later nothing is in
        the log."""
        with self._writing:
            happened, self._waiting = [event for event, written in self._waiting if written is None], []
            try:
                if happened:
                    self._append(happened)
            except OSError as e:
                logger.error("the last lines of the audit log in %s are not written: %s", self.folder, e.strerror or e)
            if self._key is not None and self._file >= 0 and self._sign_at is not None:
                try:
                    self._sign(self._key)
                except OSError as e:
                    reason = e.strerror or e
                    logger.error("the last head of the audit log in %s is not signed: %s", self.folder, reason)
            for descriptor in (self._file, self._head_file):
                if descriptor >= 0:
                    with contextlib.suppress(OSError):
                        os.fsync(descriptor)
                    os.close(descriptor)
            self._file = self._head_file = -1
            self._closed = True

    def _append(self, events: list[AuditEvent]) -> None:
        """Write the events in one write. Raises OSError; then none of them is in the file."""
        with self._writing:
            if self._closed:
                raise OSError(errno.EBADF, "the log is closed")
            if self._file < 0 or self._written >= self._size:
                if self._key is not None and self._file >= 0 and self._sign_at is not None:
                    self._sign(self._key)  # a file that is moved elsewhere can be verified by itself
                self._next_file()
            self._write(events)
            if self._key is not None and self._sign_at is None:
                self._sign_at = time.monotonic() + self._interval

    def _sign(self, key: PrivateKey) -> None:
        """Write the signed head behind the lines that it is for, and tell it to everybody who keeps this node's log."""
        with self._writing:
            os.fdatasync(self._file)  # a power failure must not take what is vouched for
            signed = sign_head(key, self.node, self._head, _now())
            self._write([AuditEvent("node", "node", SIGNED, "allowed", detail=str(signed))])
            self._sign_at = None
            logger.info("the audit log's head is %s", signed)

    def _write(self, events: list[AuditEvent]) -> None:
        head, now = self._head, _now()
        made = []
        for event in events:
            line, head = chain(event, head, now, self.node)
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
        path = segment_path(self.folder, self.node, self._head.seq + 1)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._written = os.fstat(self._file).st_size
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _recover(self) -> AuditEvent | None:
        """Find the last valid line and go on after it. Returns what to record if something is missing there: what a
        crash has cut off, or what somebody has removed."""
        self._lock()
        end = find_end(self.folder, self.node)
        self._head = end.head
        if end.newest is not None and not end.torn:
            self._file = os.open(end.newest, os.O_WRONLY | os.O_APPEND)
            self._written = os.fstat(self._file).st_size
        elif end.newest is not None and first_number(end.newest) == self._head.seq + 1:
            # It has no valid line, and the next file has its name. Otherwise it stays, and a new one begins after it.
            end.newest.rename(end.newest.with_suffix(".torn"))
        return end.fault

    def _lock(self) -> None:
        """Lock the log until the process ends: two writers would each go on from the same line, and what one of them
        cuts off after an error could be the lines of the other."""
        self._head_file = os.open(head_path(self.folder, self.node), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._head_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            self.close()
            raise ConfigError(
                f"another process writes the audit log of {self.node} in {self.folder}: expected one node of this "
                "name (stop the other one, or give this one another name or folder)"
            ) from e


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
