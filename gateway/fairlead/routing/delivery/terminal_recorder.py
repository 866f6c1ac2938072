"""Records the terminals of the agents that this node holds, for those who must be able to see later what was done.

The node that holds an agent records, because all output of its terminals comes through it, whoever reads it. The
recorder calls it with each batch before the batch is stored, so nobody reads what is not recorded; `CommandDelivery`
calls it before a terminal is opened. What cannot be recorded is not done: the command ends as `recording_unavailable`.
A terminal that shows more than a recording may have goes on, and its recording says where it was cut.
Files are never read, moved or deleted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.errors import ConfigError
from fairlead.fleet.command_record import Delivery, StoredEnd
from fairlead.fleet.commands import Commands
from fairlead.routing.delivery.terminal_recording import TerminalRecording
from fairlead.wire.messages import Chunk, End

logger = logging.getLogger(__name__)

METHODS: Final = frozenset({"shell"})
"""The methods that open a terminal."""
KNOWN: Final = 10_000
"""How many commands are remembered as recorded or not. A recording that is forgotten continues in a new file."""


@dataclass(frozen=True, slots=True)
class _OpenRecording:
    path: Path
    recording: TerminalRecording


class TerminalRecorder:
    def __init__(self, folder: Path | None, most: int, records: Commands) -> None:
        """Without a folder nothing is recorded. `most` is the size of a recording in bytes."""
        self._folder = folder
        self._most = most
        self._records = records
        self._known: OrderedDict[str, _OpenRecording | StoredEnd | None] = OrderedDict()
        """The commands of this node's agents: their recording, how they must end because it has failed, or None if they
        are not recorded."""
        self.started = 0
        self.failures = 0
        self.cut = 0

    @property
    def on(self) -> bool:
        return self._folder is not None

    def open(self) -> None:
        """Make the folder. Raises ConfigError if it cannot be used."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as e:
            raise ConfigError(
                f"terminals cannot be recorded in {self._folder} ({e.strerror or e}): check the folder and its "
                "permissions"
            ) from e

    async def begin(self, command: str, agent: str, found: Delivery) -> StoredEnd | None:
        """Begin to record a command that is about to be sent, if it opens a terminal. Returns how the command must end
        instead if it cannot be recorded."""
        if self._folder is None or found.running:
            return None
        if found.origin.method not in METHODS:
            self._remember(command, None)
            return None
        return await self._begin(command, found.origin.method, agent, found.payload, signed=bool(found.signature))

    async def write(self, agent: str, messages: Sequence[Chunk | End]) -> dict[str, StoredEnd]:
        """Record output and ends. Returns the commands that could not be recorded, and how they must end. Raises
        BusUnavailable, after which the call is repeated."""
        await self._take_over(agent, [one for one in messages if isinstance(one, Chunk) and one.id not in self._known])
        now, failed, changed = time.time(), dict[str, StoredEnd](), dict[str, _OpenRecording]()
        for message in messages:
            known = self._known.get(message.id)
            if isinstance(known, StoredEnd):
                failed[message.id] = known
            elif known is not None:
                changed[message.id] = known
                if isinstance(message, End):
                    known.recording.ended(message.state, now)
                elif known.recording.output(message.n, message.payload, now):
                    self._tell_cut(known)
        for command, known in changed.items():
            if (how := await self._append(command, known)) is not None:
                failed[command] = how
        for message in messages:
            if isinstance(message, End) and message.id not in failed:
                self._known.pop(message.id, None)
        return failed

    def input_sent(self, command: str, payload: bytes) -> None:
        """Record the new size of a terminal, which is written with its next output."""
        if isinstance(known := self._known.get(command), _OpenRecording):
            known.recording.resized(payload, time.time())

    def _tell_cut(self, known: _OpenRecording) -> None:
        self.cut += 1
        logger.warning("the recording %s is cut at %d bytes: its terminal goes on", known.path, self._most)

    async def _take_over(self, agent: str, chunks: Sequence[Chunk]) -> None:
        """Begin to record the commands whose terminal was opened on another link."""
        unknown = {chunk.id: chunk.n for chunk in reversed(chunks)}
        origins = {command: await self._records.origin(command) for command in unknown}
        for command, origin in origins.items():
            if origin is None or origin.method not in METHODS:
                self._remember(command, None)
            else:
                await self._begin(command, origin.method, agent, b"{}", unknown[command])

    async def _begin(
        self, command: str, method: str, agent: str, payload: bytes, n: int = 0, signed: bool = False
    ) -> StoredEnd | None:
        assert self._folder is not None
        now = time.time()
        recording = TerminalRecording(
            f"{method} on {agent}, command {command}", payload, now, n, signed=signed, most=self._most
        )
        # Command ids begin with their time, so files sort by the time of the command, and then by their own.
        opened = _OpenRecording(self._folder / f"{command}.{int(now * 1000)}.cast", recording)
        self._remember(command, opened)
        self.started += 1
        return await self._append(command, opened)

    def _remember(self, command: str, known: _OpenRecording | StoredEnd | None) -> None:
        self._known[command] = known
        self._known.move_to_end(command)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)

    async def _append(self, command: str, opened: _OpenRecording) -> StoredEnd | None:
        """Write what is not written yet. Returns how the command must end if that fails."""
        if not (data := opened.recording.take()):
            return None
        try:
            await asyncio.to_thread(_write, opened.path, data)
        except OSError as e:
            self.failures += 1
            logger.error("the terminal of %s cannot be recorded in %s: %s", command, self._folder, e.strerror or e)
            how = StoredEnd(
                code="recording_unavailable",
                message="the gateway must record terminals and cannot write the recording, so the terminal is closed "
                f"({e.strerror or e}; its operator frees space on the disk, or mends the folder's permissions)",
                temporary=True,
            )
            self._remember(command, how)
            return how
        return None


def _write(path: Path, data: bytes) -> None:
    """Append `data` whole, or not at all. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(file).st_size
        if (count := os.write(file, data)) < len(data):
            with contextlib.suppress(OSError):
                os.ftruncate(file, before)
            raise OSError(errno.ENOSPC, f"only {count} of {len(data)} bytes could be written")
    finally:
        os.close(file)
