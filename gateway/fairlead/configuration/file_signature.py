"""Whether a file that is read again when it changes has changed. Used for the file of issuers."""

from __future__ import annotations

from pathlib import Path


def file_signature(path: Path) -> tuple[int, ...] | None:
    """What changes with the file, also when a symbolic link in its path leads elsewhere; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
