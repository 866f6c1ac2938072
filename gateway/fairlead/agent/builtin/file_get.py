"""`file.get`: streams a file, and reports at the end whether it changed meanwhile.

A thread reads the next block once the gateway's credit has taken the previous one, so a slow reader costs 256 KiB of
memory and no disk space. A file that is written to meanwhile would arrive as a mixture of two versions, so the command
then ends with an error.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import Annotated

import msgspec

from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.files.os_errors import command_error, require_regular_file
from fairlead.agent.builtin.files.path_guard import PathGuard
from fairlead.agent.builtin.files.path_resolver import PathResolver, ResolvedPath
from fairlead.agent.builtin.options import FileOptions
from fairlead.agent.commands.command import Command
from fairlead.agent.commands.output import to_json
from fairlead.agent.errors import CommandError

BLOCK = 256 << 10
"""Bytes of one read: each switch to a thread yields four chunks."""

Offset = Annotated[int, msgspec.Meta(ge=0)]


class FileGet:
    """The method `file.get` of one agent."""

    def __init__(self, disk: DiskThreads, options: FileOptions = FileOptions(), guard: PathGuard | None = None) -> None:  # noqa: B008  # frozen
        self._disk = disk
        self._roots = PathResolver(options.folders, "file_get.roots", guard)
        self._max = options.max_bytes

    async def execute(self, command: Command, path: str, offset: Offset = 0) -> dict[str, object]:
        """Returns {"size", "sha256"} of what was sent. Raises CommandError as `path_resolver` and `os_errors` do, and
        `file_changed`, `offset_out_of_range`, `too_large`.
        """
        source = FileReader(path, self._roots)
        try:
            await self._disk.run(source.open, offset, self._max)
            await command.write("row", to_json(source.facts()))
            while block := await self._disk.run(source.read):
                await command.write("file", block)
            await self._disk.run(source.check)
        finally:
            source.close()
        return {"size": source.sent, "sha256": source.digest.hexdigest()}


class FileReader:
    """An open file, and its status when it was opened. Its methods block, and raise CommandError."""

    def __init__(self, path: str, roots: PathResolver) -> None:
        self.path = path
        self.sent = 0
        self.digest = hashlib.sha256()
        self._roots = roots
        self._place: ResolvedPath | None = None
        self._fd = -1
        self._left = 0

    def open(self, offset: int, most: int | None) -> None:
        """Open the file and begin at `offset`."""
        self._place = place = self._roots.resolve(self.path)
        if place.status is None:
            raise command_error(self.path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        require_regular_file(self.path, place.status)  # before it is opened: opening a device has effects
        try:
            # O_NONBLOCK: if it has become a pipe in this instant, opening it must not wait for a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._fd = os.open(place.name, flags, dir_fd=place.folder)
        except OSError as e:
            raise command_error(self.path, e) from e
        self._status = os.fstat(self._fd)
        require_regular_file(self.path, self._status)
        self._roots.check(self.path, self._status)
        size = self._status.st_size
        if most is not None and size > most:
            raise CommandError(
                "too_large",
                f"{self.path} has {size} bytes: this agent's configuration allows {most} "
                "(raise file_get.max_bytes there)",
                path=self.path,
                size=size,
            )
        if offset > size:
            raise CommandError(
                "offset_out_of_range",
                f"offset {offset} is beyond the end of {self.path}: expected at most its size, {size}",
                path=self.path,
                size=size,
            )
        os.lseek(self._fd, offset, os.SEEK_SET)
        self._left = size - offset

    def facts(self) -> dict[str, object]:
        """The first row of the output."""
        status = self._status
        return {
            "path": self.path,
            "size": status.st_size,
            "mode": f"{stat.S_IMODE(status.st_mode):04o}",
            "mtime": status.st_mtime,
        }

    def read(self) -> bytes:
        """The next block, empty at the end of the file. Raises CommandError `file_changed` if the file has become
        shorter.
        """
        if self._left == 0:
            return b""
        try:
            block = os.read(self._fd, min(BLOCK, self._left))
        except OSError as e:
            raise command_error(self.path, e) from e
        if not block:
            raise self._changed("became shorter")
        self._left -= len(block)
        self.sent += len(block)
        self.digest.update(block)
        return block

    def check(self) -> None:
        """Raises CommandError `file_changed` if the file is no longer the one that was opened, or was written to."""
        before, now = self._status, os.fstat(self._fd)
        if now.st_size != before.st_size or os.read(self._fd, 1):
            raise self._changed(f"had {before.st_size} bytes and has {now.st_size}")
        if now.st_mtime_ns != before.st_mtime_ns:
            raise self._changed("was written to")
        assert self._place is not None
        try:
            current = os.stat(self._place.name, dir_fd=self._place.folder, follow_symlinks=False)
        except OSError as e:
            raise self._changed("was removed") from e
        if (current.st_ino, current.st_dev) != (before.st_ino, before.st_dev):
            raise self._changed("was replaced by another file")

    def _changed(self, how: str) -> CommandError:
        return CommandError(
            "file_changed",
            f"{self.path} {how} while it was read, after {self.sent} bytes: what was sent is inconsistent (get it "
            "again when nobody writes to it)",
            temporary=True,
            path=self.path,
            bytes=self.sent,
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        if self._place is not None:
            self._place.close()
