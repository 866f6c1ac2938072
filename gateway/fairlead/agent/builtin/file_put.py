"""`file.put`: writes the input, or the content that the command names, to a file, atomically.

A temporary file in the same folder is written, checked, synced, and only then renamed: whoever opens the path sees
the old file or the new one, after a power cut too. Whatever goes wrong, the temporary file is removed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from typing import Annotated

import msgspec

from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.files.os_errors import command_error, require_regular_file
from fairlead.agent.builtin.files.path_guard import PathGuard
from fairlead.agent.builtin.files.path_resolver import PathResolver, ResolvedPath
from fairlead.agent.builtin.options import FileOptions
from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError

NAME_KEPT = 200
"""Bytes of the file's name that the temporary name contains: file systems allow 255 in all."""

Size = Annotated[int, msgspec.Meta(ge=0)]
Mode = Annotated[str, msgspec.Meta(pattern=r"^0?[0-7]{3}\Z|^[0-7]{4}\Z")]
PERMISSIONS = 0o777
"""The bits that a mode may set: with setuid or setgid, everyone on the host would get the rights of the agent's
user."""
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{64}\Z")]


class FilePut:
    """The method `file.put` of one agent."""

    def __init__(self, disk: DiskThreads, options: FileOptions = FileOptions(), guard: PathGuard | None = None) -> None:  # noqa: B008  # frozen
        self._disk = disk
        self._roots = PathResolver(options.folders, "file_put.roots", guard)
        self._max = options.max_bytes

    async def execute(
        self,
        command: Command,
        path: str,
        size: Size | None = None,
        mode: Mode = "0644",
        sha256: Digest | None = None,
        overwrite: bool = True,
        parents: bool = False,
        content: bool = False,
    ) -> dict[str, object]:
        """Returns {"path", "size", "sha256"}. Raises CommandError as `path_resolver` and `os_errors` do, and
        `invalid_arguments`, `digest_mismatch`, `size_mismatch`, `too_large`, `file_exists`.
        """
        if int(mode, 8) & ~PERMISSIONS:
            raise CommandError(
                "invalid_arguments",
                f"mode {mode} of {path} includes setuid, setgid or the sticky bit, which the platform cannot set: "
                f"expected permissions only, {int(mode, 8) & PERMISSIONS:04o}",
                path=path,
                field="mode",
            )
        if content and sha256 is None:
            raise CommandError(
                "invalid_arguments",
                f"{path}: content without sha256: expected the digest of the content",
                field="sha256",
            )
        self._check_size(path, size or 0, size)
        writer = AtomicWriter(path, self._roots, int(mode, 8), overwrite)
        try:
            await self._disk.run(writer.begin, parents)
            async for data in command.stdin.content() if content else command.stdin:
                self._check_size(path, writer.size + len(data), size)
                await self._disk.run(writer.write, data)
            if size is not None and writer.size != size:
                raise _mismatch(path, writer.size, size)
            if sha256 is not None and writer.digest.hexdigest() != sha256.lower():
                raise CommandError(
                    "digest_mismatch",
                    f"{path}: {writer.size} bytes came with the SHA-256 {writer.digest.hexdigest()}: expected "
                    f"{sha256.lower()} (nothing was kept; send the file again)",
                    path=path,
                    sha256=writer.digest.hexdigest(),
                )
            await self._disk.run(writer.keep)
        finally:
            await self._disk.run(writer.close)
        return {"path": path, "size": writer.size, "sha256": writer.digest.hexdigest()}

    def _check_size(self, path: str, came: int, size: int | None) -> None:
        if self._max is not None and came > self._max:
            raise CommandError(
                "too_large",
                f"{path}: this agent's configuration allows {self._max} bytes (raise file_put.max_bytes there)",
                path=path,
                size=came,
            )
        if size is not None and came > size:
            raise _mismatch(path, came, size)


class AtomicWriter:
    """A temporary file that is renamed to the path at the end. Its methods block and raise CommandError; only one may
    run at a time.
    """

    def __init__(self, path: str, roots: PathResolver, mode: int, overwrite: bool) -> None:
        self.size = 0
        self.digest = hashlib.sha256()
        self._path = path
        self._roots = roots
        self._mode = mode
        self._overwrite = overwrite
        self._place: ResolvedPath | None = None
        self._name = ""
        """The name of the temporary file, while it exists."""
        self._fd = -1

    def begin(self, make_folders: bool) -> None:
        try:
            self._place = place = self._roots.resolve(self._path, make_folders=make_folders)
        except CommandError as e:
            if make_folders or e.details.get("errno") != "ENOENT":
                raise
            text = f"{e.message}; parents=true makes missing folders"
            raise CommandError(e.error_code, text, path=self._path, errno="ENOENT") from e
        try:
            if place.status is not None:
                require_regular_file(self._path, place.status)
                if not self._overwrite:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            start = os.fsencode(place.name)[:NAME_KEPT].decode(errors="ignore")
            name = f".{start}.{secrets.token_hex(6)}.part"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(name, flags, 0o600, dir_fd=place.folder)
            self._name = name
        except OSError as e:
            raise command_error(self._path, e) from e

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = os.write(self._fd, rest)
                self.size += written
                rest = rest[written:]
        except OSError as e:
            raise command_error(self._path, e, self.size) from e
        self.digest.update(data)

    def keep(self) -> None:
        """Replace the path. The folder is synced too, or a power cut might undo the rename."""
        place = self._place
        assert place is not None
        try:
            os.fchmod(self._fd, self._mode)
            os.fsync(self._fd)
            self._roots.check_again(self._path, place)
            if self._overwrite:
                os.replace(self._name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
                self._name = ""
            else:
                # A rename would replace a file that appeared meanwhile; a link does not.
                os.link(self._name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder, follow_symlinks=False)
            folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.folder)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as e:
            raise command_error(self._path, e, self.size) from e

    def close(self) -> None:
        """Remove the temporary file, unless it was renamed to the path."""
        place = self._place
        if place is None:
            return
        try:
            if self._fd >= 0:
                os.close(self._fd)
            if self._name:
                os.unlink(self._name, dir_fd=place.folder)
        except OSError as e:
            raise command_error(self._path, e, self.size) from e
        finally:
            place.close()


def _mismatch(path: str, came: int, size: int) -> CommandError:
    return CommandError(
        "size_mismatch",
        f"{path}: {came} bytes came: expected {size}, as `size` says (nothing was kept; send the whole file, or "
        "correct size)",
        path=path,
        size=came,
    )
