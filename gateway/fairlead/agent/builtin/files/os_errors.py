"""Turns an OSError about a file into the error of a command: a stable code, the path, and what to do.

Used by the methods that touch files.
"""

from __future__ import annotations

import errno
import os
import stat

from fairlead.agent.errors import CommandError

_NOT_FOUND = "not_found", "check the spelling, and whether its folder exists"
_DENIED = "permission_denied", "give the agent's user access, or choose another path"
_FULL = "disk_full", "free some space there, or choose another path"

_MEANING: dict[int, tuple[str, str]] = {
    errno.ENOENT: _NOT_FOUND,
    errno.ENOTDIR: _NOT_FOUND,
    errno.ELOOP: ("not_found", "its links form a loop, or were replaced meanwhile"),
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.EISDIR: ("not_a_file", "it is a folder: name a file in it"),
    errno.ENAMETOOLONG: ("invalid_arguments", "choose a shorter path"),
    errno.EEXIST: ("file_exists", "choose another name, or overwrite=true"),
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
}


def command_error(path: str, e: OSError, done: int | None = None) -> CommandError:
    """The error of a command for `e`. `done`: bytes that were written before it."""
    code, advice = _MEANING.get(e.errno or 0, ("io_failed", "check the disk, or try again"))
    details: dict[str, str | int] = {"path": path, "errno": errno.errorcode.get(e.errno or 0, "")}
    after = ""
    if done is not None:
        details["bytes"] = done
        after = f" after {done} bytes"
    return CommandError(code, f"{path}: {e.strerror or e}{after}; {advice}", temporary=code == "disk_full", **details)


def require_regular_file(path: str, status: os.stat_result) -> None:
    """Raises CommandError `not_a_file`."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise CommandError("not_a_file", f"{path} is {kind}: expected a regular file", path=path)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
