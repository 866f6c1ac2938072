"""The contents that an agent keeps in files named by their digests, up to a bound; the oldest give way.

`script` asks here first. What is in a file is compared with its name whenever it is opened, so a damaged or forged one
is removed and asked for again. Beside the agent's journal they survive a restart; without one they are in a temporary
folder that ends with the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.errors import CommandError

KEPT_BYTES: Final = 64 << 20
KEPT_FILES: Final = 256


class KeptContents:
    def __init__(
        self, disk: DiskThreads, folder: Path | None, most_bytes: int = KEPT_BYTES, most_files: int = KEPT_FILES
    ) -> None:
        """With `folder` None, a temporary one is made when it is first needed."""
        self._disk = disk
        self._folder = folder
        self._most_bytes = most_bytes
        self._most_files = most_files

    async def open(self, digest: str) -> int | None:
        """A descriptor of the content, to read from its beginning; None if it is not kept."""
        return await self._disk.run(self._open, digest)

    async def keep(self, digest: str, size: int, data: bytes, came: int) -> int:
        """Keep what has come, and return a descriptor of it. Raises CommandError if it is another content, or the disk
        does not take it."""
        if came != size or hashlib.sha256(data).hexdigest() != digest:
            raise CommandError(
                "content_mismatch",
                f"{came} bytes came that are not the content {digest}: expected {size} bytes with this SHA-256 (store "
                "it again, and name it in `content`)",
                bytes=came, size=size,
            )  # fmt: skip
        try:
            return await self._disk.run(self._keep, digest, data)
        except OSError as e:
            raise CommandError(
                "content_not_kept", f"the content {digest} cannot be written ({e.strerror or e}): free space",
                temporary=True,
            ) from e  # fmt: skip

    def _place(self) -> Path:
        if self._folder is None:
            made = tempfile.mkdtemp(prefix="fairlead-agent-")
            weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)  # at the end of the process at the latest
            self._folder = Path(made)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder

    def _open(self, digest: str) -> int | None:
        if self._folder is None:
            return None
        path = self._folder / digest
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        found = hashlib.sha256()
        while part := os.read(file, 1 << 18):
            found.update(part)
        if found.hexdigest() != digest:
            os.close(file)
            path.unlink(missing_ok=True)
            return None
        os.lseek(file, 0, os.SEEK_SET)
        with contextlib.suppress(OSError):
            os.utime(file)  # the one that was used last is the last to give way
        return file

    def _keep(self, digest: str, data: bytes) -> int:
        folder = self._place()
        self._make_room(folder, len(data))
        part = folder / f".{digest}.{secrets.token_hex(4)}.part"
        try:
            # Everybody may read the file who is given its descriptor, such as the user that the script runs as; nobody
            # else comes into the folder.
            made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with open(made, "wb") as written:
                written.write(data)
                os.fchmod(written.fileno(), 0o444)
            os.replace(part, folder / digest)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return os.open(folder / digest, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _make_room(self, folder: Path, size: int) -> None:
        """Remove the contents that were used longest ago, until one of `size` bytes fits."""
        found = []
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                found.append((about.st_mtime, about.st_size, entry.path))
        found.sort()
        total = sum(bytes_of for _, bytes_of, _ in found)
        while found and (total + size > self._most_bytes or len(found) >= self._most_files):
            _, bytes_of, path = found.pop(0)
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= bytes_of
