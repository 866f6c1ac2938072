"""The durable memory of an agent: accepted commands, their output and events, across the end of its process.

Created by `Agent` if it is given a folder. `CommandRunner` records each command in it before the command is
acknowledged, and the outbox records the rest. Accepted commands are on the disk before their ack; ends and events
follow soon. Chunks do not wait for the disk: after a power cut the last ones may be missing, and their stream then ends
with `results_gap`.

It runs nothing and sends nothing. If the file is damaged, the commands in it are forgotten and the journal gets a new
id, by which the gateway learns that their outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fairlead.agent.errors import JournalFull
from fairlead.agent.journal.journal_file import JournalFile
from fairlead.agent.journal.records import VERSION, Accepted, CommandClosed, EventStored, Header, frame
from fairlead.agent.journal.replay import replay
from fairlead.agent.journal.state import JournalState
from fairlead.agent.journal.writer import JournalWriter
from fairlead.errors import ConfigError
from fairlead.wire.messages import Chunk, Cmd, End, Error, Event
from fairlead.wire.outbox import Outbox

logger = logging.getLogger("fairlead.agent")

SIZE_LIMIT = 64 << 20
"""Maximum size of the file in bytes: enough for an hour of a busy host's output, and no burden on its disk."""
SIGNED_LIMIT = 32_768
"""Maximum number of signed commands that are remembered: 90 a second with a validity of six minutes, in 2.5 MiB of the
file."""
LEAST_LIMIT = 8 << 20
"""The smallest limit in bytes: the last command that is accepted may take half a MiB of the quarter that is reserved
for output."""

UNKNOWN = Error(code="outcome_unknown", message="the agent was restarted while the command ran; it was not run again")


class Journal:
    def __init__(self, folder: str | os.PathLike[str], agent: str, limit: int = SIZE_LIMIT) -> None:
        """Open or create the journal. Raises ConfigError if another process or another agent uses this folder, or if it
        cannot be used.
        """
        if limit < LEAST_LIMIT:
            raise ConfigError(f"invalid journal limit {limit}: expected at least {LEAST_LIMIT} bytes")
        self._limit = limit
        file = JournalFile(Path(folder))
        try:
            state = _open(file, agent)
        except OSError as e:
            file.close()
            raise ConfigError(f"the journal in {folder} cannot be used: {e}") from e
        except BaseException:
            file.close()
            raise
        self._state = state
        self._writer = JournalWriter(file, state, limit)
        self._forget_at = SIGNED_LIMIT // 8

    @property
    def id(self) -> str:
        """The journal's id, which the gateway compares with the one that it knows."""
        assert self._state.header is not None
        return self._state.header.journal

    @property
    def created(self) -> int:
        """When the journal was created (Unix ms): what came before is not in it."""
        assert self._state.header is not None
        return self._state.header.created

    @property
    def has_room_for_signed(self) -> bool:
        """Whether one more signed command can be remembered."""
        signed = self._state.signed
        if len(signed) >= self._forget_at:
            self._state.forget_expired(_now())
            self._forget_at = min(max(SIGNED_LIMIT // 8, 2 * len(self._state.signed)), SIGNED_LIMIT)
        return len(self._state.signed) < SIGNED_LIMIT

    def has_signed(self, command: str) -> bool:
        """Whether a signed command with this id was accepted, and its signature may not have expired."""
        return command in self._state.signed

    @property
    def has_room(self) -> bool:
        """Whether output may be written."""
        return self._writer.has_room

    def start(self, on_room: Callable[[], None]) -> asyncio.Task[None]:
        """Start syncing; `on_room` is called when there may be room again. The task ends with `close`."""
        return self._writer.start(on_room)

    async def close(self) -> None:
        """Sync once more, and release the folder."""
        await self._writer.close()

    def restore(self, outbox: Outbox) -> list[Accepted]:
        """Fill the outbox of a new process. Commands that were running end with `outcome_unknown`, except those that
        are returned: they may run again, once the gateway says that it still wants them.
        """
        now = _now()
        restartable: list[Accepted] = []
        for command in self._state.finished:
            outbox.finished(command)
        for command, journaled in tuple(self._state.commands.items()):
            pending: list[Chunk | End] = [chunk for chunk, _ in journaled.chunks]
            if journaled.end is not None:
                pending.append(journaled.end)
            stream = outbox.restored(command, journaled.next, pending)
            if journaled.may_restart(now):
                restartable.append(Accepted(journaled.cmd, journaled.expiry))
                continue
            if journaled.end is None:
                stream.end("error", error=UNKNOWN)
            outbox.finished(command)
        for event, _ in self._state.events.values():
            outbox.events[event.id] = event
        return restartable

    # -- called by CommandRunner ---------------------------------------------------------------------

    def accept(self, cmd: Cmd, signed: int = 0) -> asyncio.Future[None]:
        """Record a command. The returned future is done once the record is on the disk: only then may the command be
        acknowledged. JournalFailed is raised here or set on the future. The id of a signed command is remembered until
        `signed` (Unix ms).
        """
        # A quarter is reserved for output: otherwise commands could fill the journal and then wait for each other to
        # write.
        if not self.has_room or self._state.live > self._limit * 3 // 4:
            raise JournalFull(f"the journal of this agent is full ({self._limit} bytes): try again later")
        # Only a command that may run again needs its arguments.
        expiry = _now() + cmd.deadline
        accepted = Accepted(cmd, expiry) if cmd.retry == "safe" else _not_restartable(cmd, expiry)
        self._writer.append(msgspec.structs.replace(accepted, signed=signed) if signed else accepted)
        return self._writer.synced()

    def restarted(self, accepted: Accepted) -> None:
        """Record that a command of `restore` runs again, so that it never runs a third time. Raises JournalFailed."""
        self._writer.append(_not_restartable(accepted.cmd, accepted.expiry))

    # -- called by the outbox, as its `Memory` -------------------------------------------------------

    def keep(self, message: Chunk | End | Event) -> None:
        """Record a message before it enters the outbox. Raises JournalFailed, except for an end, which is sent in any
        case.
        """
        if isinstance(message, End):
            self._writer.append_if_possible(message)
        elif isinstance(message, Event) and not self.has_room:
            raise JournalFull(f"the journal of this agent is full ({self._limit} bytes): wait, or drop some")
        else:
            self._writer.append(message)
        if not isinstance(message, Chunk):
            self._writer.sync_soon()

    def took(self, command: str) -> None:
        """The command's handler has read input, which the gateway will not send again."""
        journaled = self._state.commands.get(command)
        if journaled is not None and journaled.cmd.retry == "safe" and not journaled.spent and journaled.next == 0:
            self._writer.append_if_possible(_not_restartable(journaled.cmd, journaled.expiry))

    def stored(self, command: str, count: int) -> None:
        """The gateway has stored the first `count` chunks of the command."""
        self._state.stored(command, count)
        self._writer.rewrite_if_wasteful()

    def over(self, command: str) -> None:
        """The gateway has stored the command's end, or needs nothing more of the command."""
        self._writer.append_if_possible(CommandClosed(command))

    def event_stored(self, event: str) -> None:
        """The gateway has stored this event."""
        self._writer.append_if_possible(EventStored(event))


def _open(file: JournalFile, agent: str) -> JournalState:
    """The state in the file, or that of a new journal. Raises OSError, and ConfigError if the journal is another
    agent's or of another version.
    """
    found = replay(file.read())
    header = found.state.header
    if header is not None and header.version != VERSION:
        raise ConfigError(f"the journal in {file.path} has version {header.version}: expected {VERSION}")
    if header is not None and header.agent != agent:
        raise ConfigError(f"the journal in {file.path} belongs to agent {header.agent!r}, not to {agent!r}")
    if header is not None and not found.damage:
        if found.torn:
            logger.warning("the journal was cut at byte %d, where its last record is incomplete", found.end)
        file.open(found.end)
        return found.state
    state = JournalState()
    state.apply(Header(VERSION, secrets.token_hex(8), agent, _now()), 0)
    if header is not None or found.damage or found.torn:
        logger.error(
            "the journal in %s is damaged: %s. Its commands are forgotten, and the gateway will end them",
            file.path, found.damage or "it has no header",
        )  # fmt: skip
        for event, size in found.state.events.values():
            state.apply(event, size)
    file.replace(file.prepare(map(frame, state.records())), 0)
    file.sync()
    return state


def _not_restartable(cmd: Cmd, expiry: int) -> Accepted:
    """The record of a command that must not run again; it does not keep the arguments."""
    return Accepted(msgspec.structs.replace(cmd, payload=b"", sig=b""), expiry, spent=True)


def _now() -> int:
    """Unix time in ms. A deadline must outlive the process, which no other clock does."""
    return int(time.time() * 1000)
