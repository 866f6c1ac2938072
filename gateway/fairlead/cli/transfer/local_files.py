"""Where `cp` copies from and to on this machine: a file, a device, stdin, stdout.

Used by `transfer`. A file that is written is a temporary one beside its place until all of it is there and its digest
is right: whoever opens the path sees the old file or the new one, and a failure leaves nothing behind. What the system
refuses becomes an error that names the path and the next step.
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
"""Characters of the name that the temporary one repeats: file systems allow 255 octets."""
_NEXT = {
    errno.ENOSPC: "free some space there, or choose another place",
    errno.EDQUOT: "free some space there, or choose another place",
    errno.EFBIG: "this user may not write files of that size (ulimit -f)",
    errno.EACCES: "choose a place that you may use, or change its permissions",
    errno.EPERM: "choose a place that you may use, or change its permissions",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOENT: "check the spelling, and whether its folder is there",
    errno.ENOTDIR: "check the spelling: a part of the path is no folder",
    errno.EISDIR: "it is a folder: name a file",
}


class LocalFileError(FairleadError):
    """Something on this machine: not the agent's fault, and not the gateway's."""

    code = "local_fault"


@contextmanager
def local(what: str, path: object) -> Iterator[None]:
    """Translate what the system says of `path`; `what` completes "cannot …"."""
    try:
        yield
    except BrokenPipeError:
        raise  # stdout's reader has gone: `main` knows what that means
    except OSError as e:
        advice = _NEXT.get(e.errno or 0, "look at the disk, or choose another place")
        raise LocalFileError(f"cannot {what} {path} on this machine: {e.strerror or e}; {advice}") from e


class Sink:
    """A place that takes octets: the descriptor `fd`, as it is."""

    def __init__(self, fd: int, name: str, owned: bool = False) -> None:
        self.name = name
        self._fd = fd
        self._owned = owned

    async def write(self, data: bytes) -> None:
        with local("write to", self.name):
            await stdio.write(self._fd, data)

    def keep(self, mode: int | None) -> None:
        """All of it has come, and is right."""

    def close(self) -> None:
        if self._owned and self._fd >= 0:
            with local("write to", self.name):
                os.close(self._fd)
            self._fd = -1


class AtomicFile(Sink):
    """A file that appears when it is kept."""

    def __init__(self, path: Path, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self._draft: Path | None = path.with_name(f".{path.name[:NAME_KEPT]}.{secrets.token_hex(4)}.part")
        with local("write", path):
            fd = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        super().__init__(fd, str(path), owned=True)

    def keep(self, mode: int | None) -> None:
        assert self._draft is not None
        with local("write", self._path):
            os.fchmod(self._fd, (0o666 if mode is None else mode) & ~_umask())
            os.fsync(self._fd)
            if self._overwrite:
                os.replace(self._draft, self._path)
                self._draft = None
                return
        try:
            os.link(self._draft, self._path)  # a rename would replace what came meanwhile
        except FileExistsError as e:
            raise _exists(self._path) from e

    def close(self) -> None:
        super().close()
        if self._draft is not None:
            with suppress(OSError):
                self._draft.unlink()
            self._draft = None


def sink(path: str, name: str, overwrite: bool) -> Sink:
    """Where a file of that `name` goes when `path` was said: `-` is stdout, in a folder it keeps its name."""
    if path == "-":
        return Sink(1, "stdout")
    target = Path(path)
    if target.is_dir() or path.endswith("/"):
        target = target / name
    with local("write", target):
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
        return Sink(os.open(target, os.O_WRONLY | os.O_CLOEXEC), str(target), owned=True)  # a device, a pipe


class Source:
    """A file to be sent, or stdin. `size` and `mode` are None when they cannot be known."""

    def __init__(self, path: str) -> None:
        self.name = "stdin" if path == "-" else path
        self._fd = 0
        self.size: int | None = None
        self.mode: int | None = None
        if path == "-":
            return
        with local("read", path):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(self._fd)
            if stat.S_ISDIR(found.st_mode):
                os.close(self._fd)
                raise LocalFileError(f"{path} is a folder, and cp copies files: `tar` makes one of it, - takes a pipe")
            if stat.S_ISREG(found.st_mode):
                self.size, self.mode = found.st_size, stat.S_IMODE(found.st_mode) & 0o777

    async def read(self, most: int) -> bytes:
        with local("read", self.name):
            return await stdio.read(self._fd, most)

    def rewind(self) -> None:
        with local("read", self.name):
            os.lseek(self._fd, 0, os.SEEK_SET)

    def close(self) -> None:
        if self._fd:
            os.close(self._fd)


def _exists(path: Path) -> LocalFileError:
    return LocalFileError(f"{path} is there already: leave --no-overwrite out, or choose another name")


def _umask() -> int:
    mask = os.umask(0o077)  # it can only be read by setting it
    os.umask(mask)
    return mask
