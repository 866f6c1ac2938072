"""A folder that only this user can enter, and a path to it that is short enough for a Unix socket.

The embedded server uses it for its data and its socket. It knows nothing about Redis. Folders are checked and changed
through one file descriptor, so that no other folder can take the place of a folder between the check and the change.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from fairlead.errors import ConfigError
from fairlead.store.endpoint import SOCKET_PATH_LIMIT

FOLDER_MODE, FILE_MODE = 0o700, 0o600
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
UMASK = 0o077
"""The umask of a process whose files no other user may read."""


def make_private(folder: Path) -> None:
    """Create `folder`, or remove other users' access to it.

    Raises OSError if that is not possible. Raises ConfigError if the folder belongs to another user, if other users may
    replace it with another folder, or if they had access to it and may have put something into it.
    """
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    # O_NOFOLLOW: a symbolic link in its place could lead to a folder that is not intended for this server.
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        facts = os.fstat(opened)
        if facts.st_uid != os.geteuid():
            raise ConfigError(
                f"the data folder {folder} belongs to another user (uid {facts.st_uid}), who could read and change "
                "what is in it; name a folder of your own"
            )
        _check_parents(folder)
        if facts.st_mode & 0o777 != FOLDER_MODE:
            os.fchmod(opened, FOLDER_MODE)
        if facts.st_mode & OTHERS_WRITE:
            _check_entries(folder, opened)
    finally:
        os.close(opened)


def _check_parents(folder: Path) -> None:
    """Raise ConfigError if every user may write into a parent folder, and so may replace `folder` with another one.

    Parent folders that their group may write to are accepted: with a umask of 002, all folders of a user are like that,
    and each user has a group of their own.
    """
    for parent in folder.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigError(
                f"every user of this machine may put another folder in the place of the data folder {folder}, because "
                f"{parent} is writable for all: remove that permission (chmod o-w {parent}), or name another folder"
            )


def _check_entries(folder: Path, opened: int) -> None:
    """Raise ConfigError if another user may have put an entry into the folder, which others could write to until now.

    The server would follow a symbolic link there and write to its target.
    """
    with os.scandir(opened) as entries:
        for entry in entries:
            if entry.is_symlink() or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                raise ConfigError(
                    f"other users could write into the data folder {folder}, and {entry.name!r} in it is a link or "
                    "belongs to another user: remove it if you do not know it, or name another folder"
                )


def open_private(path: str, flags: int) -> int:
    """An `opener` for `open`, for files that only this user can read. Raises OSError if the file is a symbolic link."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


class SocketPath:
    """The path by which clients connect to a Unix socket in a folder.

    If the path of the folder is too long, clients use a symbolic link in a private temporary folder. The socket itself
    is always in the folder, where the server creates it by its name alone.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._temporary: Path | None = None

    def reachable(self) -> str:
        """Return the path. Raises ConfigError if it is too long and no symbolic link can be made."""
        path = self._folder.resolve() / self._name
        if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
            return str(path)
        if self._temporary is None:
            self._temporary = self._link()
        return str(self._temporary / "data" / self._name)

    def _link(self) -> Path:
        temporary = None
        try:
            temporary = Path(tempfile.mkdtemp(prefix="fairlead-"))
            (temporary / "data").symlink_to(self._folder.resolve())
        except OSError as e:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise ConfigError(
                f"the path of the data folder {self._folder} is too long for a Unix socket, and no link to it can be "
                f"made ({e}); set TMPDIR to a folder that can be written, or name a data folder with a shorter path"
            ) from e
        return temporary

    def remove(self) -> None:
        """Remove the symbolic link, if there is one, but not its target."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
