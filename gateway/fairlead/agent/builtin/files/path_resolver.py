"""Resolves a path from the platform, one name at a time, and refuses it unless it ends beneath one of the allowed
roots.

Used by `file.get` and `file.put`, in a thread. Protected paths are refused inside the roots, too (see `path_guard`).
The walk holds each folder open and never lets the kernel follow a link: it reads links itself and walks their names in
turn, so that nobody can replace a folder with a link between the check and the use. What is opened is what was checked.
Links that stay inside the roots are followed like any other.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.agent.builtin.files.os_errors import command_error
from fairlead.agent.builtin.files.path_guard import PathGuard
from fairlead.agent.errors import CommandError

LINKS = 40
"""The maximum number of symbolic links that one walk follows, which is Linux's own limit."""
NAMES = 64
"""The maximum number of folders on the way: each is held open, and eight walks at once must not exhaust the agent's
file descriptors."""
# Without O_PATH, folders that may be passed through but not read cannot be opened.
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """An open folder and a name in it; `status` is None where nothing has that name."""

    folder: int
    name: str
    status: os.stat_result | None

    def close(self) -> None:
        os.close(self.folder)


class PathResolver:
    def __init__(self, roots: Iterable[str], key: str, guard: PathGuard | None = None) -> None:
        """`key` is the setting that names the roots, for errors."""
        self._roots = tuple(roots)
        self._key = key
        self._guard = guard or PathGuard()

    def resolve(self, path: str, *, make_folders: bool = False) -> ResolvedPath:
        """Where `path` leads; the caller closes it. With `make_folders`, missing folders are created.

        Raises CommandError: `path_forbidden`, `not_found`, `permission_denied`, `invalid_arguments` or `io_failed`.
        """
        if not path.startswith("/") or "\0" in path:
            raise CommandError(
                "path_forbidden", f"invalid path {path!r}: expected an absolute path without NUL", path=path
            )
        walk = _Walk(path, [_names(os.path.realpath(root)) for root in self._roots], self._guard)
        try:
            if path.endswith("/"):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return walk.go(make_folders)
        except OSError as e:
            if not walk.inside:
                raise self._forbidden(path) from e  # the answer must not reveal whether anything exists there
            raise command_error(path, e) from e
        except _Outside as e:
            raise self._forbidden(path) from e
        except _Protected as e:
            raise _protected_error(path, str(e)) from e
        finally:
            walk.close()

    def check(self, path: str, status: os.stat_result) -> None:
        """Check that what was opened at `path` is not protected: it may have been replaced after the walk. Raises
        CommandError `path_forbidden`.
        """
        if why := self._guard.reason_for(status):
            raise _protected_error(path, why)

    def check_again(self, path: str, place: ResolvedPath) -> None:
        """Check that `path` still leads there: a folder above may have been renamed or replaced after the walk.
        Raises CommandError as `resolve` does.
        """
        now = self.resolve(path)
        try:
            same = os.path.samestat(os.fstat(now.folder), os.fstat(place.folder)) and now.name == place.name
        finally:
            now.close()
        if not same:
            raise CommandError(
                "path_forbidden",
                f"{path} leads to another folder than at the beginning (nothing was kept; send it again when "
                "nobody moves the folders above it)",
                temporary=True,
                path=path,
            )

    def _forbidden(self, path: str) -> CommandError:
        roots = ", ".join(self._roots) or "none"
        return CommandError(
            "path_forbidden",
            f"{path} is outside the folders that this agent's configuration allows: expected a path beneath "
            f"{self._key} ({roots}), or its folder to be added there",
            path=path,
            key=self._key,
        )


def _protected_error(path: str, why: str) -> CommandError:
    return CommandError(
        "path_forbidden",
        f"{path} is {why}, or lies in it, which the platform cannot access: choose another path",
        path=path,
    )


def _names(path: str) -> Names:
    return tuple(name for name in path.split("/") if name not in ("", "."))


class _Outside(Exception):
    """The path leads out of the roots."""


class _Protected(Exception):
    """The path leads to something that is protected; the message says what it is."""


class _Walk:
    """The walk along one path, from / on."""

    def __init__(self, path: str, allowed: list[Names], guard: PathGuard) -> None:
        self._allowed = allowed
        self._guard = guard
        self._left = list(reversed(_names(path)))
        self._folders = [os.open("/", FOLDER)]
        self._names: list[str] = []
        self._links = 0

    @property
    def inside(self) -> bool:
        """Whether the rest of the walk ends in a root, provided that it meets no more links."""
        names = list(self._names)
        for name in reversed(self._left):
            if name == "..":
                names[-1:] = []
            else:
                names.append(name)
        return self._allows(tuple(names))

    def _allows(self, names: Names) -> bool:
        return any(names[: len(root)] == root for root in self._allowed)

    def go(self, make_folders: bool) -> ResolvedPath:
        """Walk to the end. Raises OSError where the path ends early, _Outside when it leads out of the roots."""
        while self._left:
            name = self._left[-1]
            if name == "..":
                self._left.pop()
                if self._names:
                    self._names.pop()
                    os.close(self._folders.pop())
                continue
            status = self._status(name)
            if status is not None and stat.S_ISLNK(status.st_mode):
                self._follow(name)
            elif len(self._left) == 1:
                if not self._allows((*self._names, name)):
                    raise _Outside
                self._require_unprotected(name, status)
                return ResolvedPath(os.dup(self._folders[-1]), name, status)
            else:
                self._enter(name, status, make_folders)
                self._left.pop()
        if not self._allows(tuple(self._names)):
            raise _Outside
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    def _require_unprotected(self, name: str, status: os.stat_result | None) -> None:
        if why := self._guard.reason([os.fstat(folder) for folder in self._folders], name, status):
            raise _Protected(why)

    def _status(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._folders[-1], follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _follow(self, name: str) -> None:
        self._links += 1
        if self._links > LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        try:
            target = os.readlink(name, dir_fd=self._folders[-1])
        except OSError as e:
            if e.errno == errno.EINVAL:
                return  # it is no longer a link: look again
            raise
        self._left.pop()
        self._left += reversed(_names(target))
        if target.startswith("/"):
            while self._names:
                self._names.pop()
                os.close(self._folders.pop())

    def _enter(self, name: str, status: os.stat_result | None, make: bool) -> None:
        if len(self._names) >= NAMES:
            raise OSError(errno.ENAMETOOLONG, f"more than {NAMES} folders deep")
        if status is None:
            if not make:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if not self._allows((*self._names, name)):
                raise _Outside
            self._require_unprotected(name, None)
            try:
                os.mkdir(name, 0o755, dir_fd=self._folders[-1])
            except FileExistsError:
                pass  # another process created it meanwhile: the next line finds out what it is
        self._folders.append(os.open(name, FOLDER, dir_fd=self._folders[-1]))
        self._names.append(name)

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.pop())
