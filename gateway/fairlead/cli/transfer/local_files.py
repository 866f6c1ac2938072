"""This machine's end of a copy: a file, a device, stdin or stdout.

Used by `file_copy`. A file is written under a temporary name in its folder until it is complete and its digest matches:
whoever opens the path sees the old file or the new one, and a failure leaves nothing behind. An OSError becomes a
LocalFileError that names the path and the next step.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairlead.cli.terminal import stdio
from fairlead.errors import FairleadError

NAME_KEPT = 200
"""Characters of the file's name that the temporary name contains: file systems allow 255 bytes in all."""
_ADVICE = {
    errno.ENOSPC: "free some space there, or choose another place",
    errno.EDQUOT: "free some space there, or choose another place",
    errno.EFBIG: "this user is not allowed to write files of that size (ulimit -f)",
    errno.EACCES: "choose a place that you may use, or change its permissions",
    errno.EPERM: "choose a place that you may use, or change its permissions",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOENT: "check the spelling, and whether its folder exists",
    errno.ENOTDIR: "check the spelling: a part of the path is not a folder",
    errno.EISDIR: "it is a folder: name a file",
}


class LocalFileError(FairleadError):
    """A file on this machine cannot be read or written; neither the agent nor the gateway is at fault."""

    code = "local_file"


@contextmanager
def translate_errors(action: str, path: object) -> Iterator[None]:
    """Raise LocalFileError for an OSError about `path`; `action` completes "cannot …"."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of stdout has gone, which `main` handles
    except OSError as e:
        advice = _ADVICE.get(e.errno or 0, "check the disk, or choose another place")
        raise LocalFileError(f"cannot {action} {path} on this machine: {e.strerror or e}; {advice}") from e


class LocalTarget:
    """A destination that is written to directly: the file descriptor `fd`."""

    def __init__(self, fd: int, name: str, owned: bool = False) -> None:
        self.name = name
        self._fd = fd
        self._owned = owned

    async def write(self, data: bytes) -> None:
        with translate_errors("write to", self.name):
            await stdio.write(self._fd, data)

    def commit(self, mode: int | None) -> None:
        """Called once all bytes have arrived and the digests match; `mode` is that of the source, if known."""

    def close(self) -> None:
        if self._owned and self._fd >= 0:
            with translate_errors("write to", self.name):
                os.close(self._fd)
            self._fd = -1


class AtomicFile(LocalTarget):
    """A file that appears under its name when it is committed."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self._temporary: Path | None = path.with_name(f".{path.name[:NAME_KEPT]}.{secrets.token_hex(4)}.part")
        with translate_errors("write", path):
            fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        super().__init__(fd, str(path), owned=True)

    def commit(self, mode: int | None) -> None:
        assert self._temporary is not None
        with translate_errors("write", self._path):
            os.fchmod(self._fd, (0o666 if mode is None else mode) & ~_umask())
            os.fsync(self._fd)
            if self._overwrite:
                os.replace(self._temporary, self._path)
                self._temporary = None
                return
        try:
            os.link(self._temporary, self._path)  # a rename would replace a file that was created meanwhile
        except FileExistsError as e:
            raise _exists(self._path) from e

    def close(self) -> None:
        super().close()
        if self._temporary is not None:
            with suppress(OSError):
                self._temporary.unlink()
            self._temporary = None


def open_target(path: str, name: str, overwrite: bool) -> LocalTarget:
    """Open `path` for writing: `-` is stdout, and in a folder the file is called `name`."""
    if path == "-":
        return LocalTarget(1, "stdout")
    target = Path(path)
    if target.is_dir() or path.endswith("/"):
        target = target / name
    with translate_errors("write", target):
        try:
            kind = os.stat(target).st_mode
        except FileNotFoundError:
            return AtomicFile(target, overwrite)
        if stat.S_ISREG(kind):
            if not overwrite:
                raise _exists(target)
            return AtomicFile(target.resolve(), overwrite)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return LocalTarget(os.open(target, os.O_WRONLY | os.O_CLOEXEC), str(target), owned=True)  # a device, a pipe


class LocalSource:
    """A file to be sent, or stdin. `size` and `mode` are None if they cannot be known beforehand."""

    def __init__(self, path: str) -> None:
        self.name = "stdin" if path == "-" else path
        self._fd = 0
        self.size: int | None = None
        self.mode: int | None = None
        if path == "-":
            return
        with translate_errors("read", path):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(self._fd)
            if stat.S_ISDIR(found.st_mode):
                os.close(self._fd)
                raise LocalFileError(
                    f"{path} is a folder, and cp copies files: pipe an archive, as in "
                    "tar c FOLDER | fairlead cp - AGENT:/PATH"
                )
            if stat.S_ISREG(found.st_mode):
                self.size, self.mode = found.st_size, stat.S_IMODE(found.st_mode) & 0o777

    async def read(self, most: int) -> bytes:
        with translate_errors("read", self.name):
            return await stdio.read(self._fd, most)

    def rewind(self) -> None:
        with translate_errors("read", self.name):
            os.lseek(self._fd, 0, os.SEEK_SET)

    def close(self) -> None:
        if self._fd:
            os.close(self._fd)


def _exists(path: Path) -> LocalFileError:
    return LocalFileError(f"{path} exists: omit --no-overwrite, or choose another name")


def _umask() -> int:
    mask = os.umask(0o077)  # the umask can only be read by setting it
    os.umask(mask)
    return mask
