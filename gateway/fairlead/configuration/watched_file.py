"""A file that is read again when it changes: whether it has changed, and its octets.

Used for the files of roles, of issuers and of the issuer's keys. It parses nothing and waits for nothing.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fairlead.errors import ConfigError


def file_signature(path: Path) -> tuple[int, ...] | None:
    """A value that changes with the file, also when a symbolic link in its path leads elsewhere. None if the file
    cannot be found."""
    try:
        found = path.stat()
    except OSError:
        return None
    # The time of the last change of the inode tells two files apart to which a deployment has given the same mtime.
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def read_regular_file(path: Path, limit: int) -> bytes:
    """The first `limit` octets of the file. Raises ConfigError if it cannot be read."""
    try:
        with open(path, "rb", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path} is no regular file: expected a file, not a folder, pipe or device")
            return file.read(limit)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read ({e.strerror or e}): check the path and its permissions") from e


def _open(path: str, flags: int) -> int:
    """A pipe without a writer would block for ever, and with it every later look at the file."""
    return os.open(path, flags | os.O_NONBLOCK)
