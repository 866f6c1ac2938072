"""`log.tail`: sends the last lines of a file or of a unit's journal, and follows them.

A file is read in a thread as far as the gateway's credit goes, within the roots of `file.get`; the journal comes from
journalctl. It follows until the deadline or a cancel.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec

from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.files.log_file import LogFile
from fairlead.agent.builtin.files.path_guard import PathGuard
from fairlead.agent.builtin.files.path_resolver import PathResolver
from fairlead.agent.builtin.options import FileOptions
from fairlead.agent.builtin.process.program_output import find_tool, run_tool
from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError
from fairlead.methods.library import UNIT_PATTERN

Unit = Annotated[str, msgspec.Meta(pattern=UNIT_PATTERN)]
Lines = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
LOOK: Final = 0.25
"""Seconds between two looks at a file that did not grow."""


class LogTail:
    """The method `log.tail` of one agent. `options` are those of `file.get`, which reads the same files."""

    def __init__(self, disk: DiskThreads, options: FileOptions = FileOptions(), guard: PathGuard | None = None) -> None:  # noqa: B008  # frozen
        self._disk = disk
        self._roots = PathResolver(options.folders, "file_get.roots", guard)
        self._limited = options.roots is not None

    async def execute(
        self,
        command: Command,
        path: str | None = None,
        unit: Unit | None = None,
        lines: Lines = 10,
        follow: bool = False,
    ) -> dict[str, int]:
        """Returns {"bytes", "rotations"}. Raises CommandError as `path_resolver` and `os_errors` do, and
        `invalid_arguments`, `unit_forbidden`, `journal_unread`, `unsupported`."""
        if (path is None) == (unit is None):
            raise CommandError("invalid_arguments", "log.tail: expected path or unit: one of the two", field="path")
        if unit is not None:
            return await self._journal(command, unit, lines, follow)
        assert path is not None
        return await self._file(command, path, lines, follow)

    async def _file(self, command: Command, path: str, lines: int, follow: bool) -> dict[str, int]:
        reader, sent = LogFile(path, self._roots), 0
        try:
            await self._disk.run(reader.open, lines)
            while True:
                if data := await self._disk.run(reader.read):
                    await command.write("stdout", data)
                    sent += len(data)
                elif follow:
                    await asyncio.sleep(LOOK)
                else:
                    return {"bytes": sent, "rotations": reader.rotations}
        finally:
            reader.close()

    async def _journal(self, command: Command, unit: str, lines: int, follow: bool) -> dict[str, int]:
        if self._limited:
            raise CommandError(
                "unit_forbidden", "this agent reads files of file_get.roots only, and no journal: name a path",
                key="file_get.roots",
            )  # fmt: skip
        journalctl, sent = find_tool("journalctl", "log.tail with a unit"), 0

        async def write(data: bytes) -> None:
            nonlocal sent
            sent += len(data)
            await command.write("stdout", data)

        options = ["--no-pager", "--quiet", "--output=short-iso", f"--lines={lines}", f"--unit={unit}"]
        result, errors = await run_tool(command, [journalctl, *options, *(["--follow"] if follow else [])], write)
        if result != {"exit_code": 0}:
            code = result.get("exit_code")
            raise CommandError("journal_unread", f"journalctl failed: {errors[:500]}", unit=unit, exit_code=code)
        return {"bytes": sent, "rotations": 0}
