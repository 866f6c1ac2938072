"""Recognizes protected paths by their identity in the file system, not by their names.

Used by `PathResolver` at the end of each walk, and where a folder is made, in a thread. It compares device and inode:
those of the file, so that a hard link counts as the file itself, and those of all folders on the way, which the walk
holds open, so that a folder that was renamed or mounted elsewhere is still recognized. A protected path that does not
exist yet is recognized by its folder and its name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence

from fairlead.agent.builtin.files.protected_paths import ProtectedPath, resolve_links

Identity = tuple[int, int]
"""Device and inode."""


class PathGuard:
    def __init__(self, protected: Iterable[ProtectedPath] = ()) -> None:
        self._protected = tuple(protected)
        self._seen: dict[str, set[Identity]] = {}
        """What each path last referred to, from the agent's start on: that file stays protected when its folder is
        renamed."""
        self._identify()

    def reason(self, folders: Sequence[os.stat_result], name: str, status: os.stat_result | None) -> str:
        """Why the file `name` is protected, in words; empty when it is not. `folders` are those on the way, from /
        on.
        """
        names, files, whole_folders = self._identify()
        identities = [identity(folder) for folder in folders]
        for folder in identities:
            if folder in whole_folders:
                return whole_folders[folder]
        if identities and (what := names.get((identities[-1], name))):
            return what
        return self.reason_for(status, files) if status is not None else ""

    def reason_for(self, status: os.stat_result, files: dict[Identity, str] | None = None) -> str:
        """The same as `reason`, for a file that was opened."""
        return (self._identify()[1] if files is None else files).get(identity(status), "")

    def _identify(self) -> tuple[dict[tuple[Identity, str], str], dict[Identity, str], dict[Identity, str]]:
        """Protected paths by folder and name, files (and whole folders) by identity, and whole folders alone."""
        names: dict[tuple[Identity, str], str] = {}
        files: dict[Identity, str] = {}
        whole_folders: dict[Identity, str] = {}
        for one in self._protected:
            passed = resolve_links(one.path)
            for path in passed:
                folder, name = os.path.split(path)
                if (parent := _status(folder)) is not None:
                    names[identity(parent), name] = one.description
            status = _status(passed[-1])
            if status is not None:
                self._seen[one.path] = {identity(status)}
                if one.whole and one.secret and stat.S_ISDIR(status.st_mode):
                    self._seen[one.path] |= _entries(passed[-1])
            for known in self._seen.get(one.path, ()):
                files[known] = one.description
                if one.whole:
                    whole_folders[known] = one.description
        return names, files, whole_folders


def identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _entries(folder: str) -> set[Identity]:
    """The identities of the files in a folder: a hard link elsewhere may refer to them."""
    try:
        with os.scandir(folder) as entries:
            return {identity(entry.stat(follow_symlinks=False)) for entry in entries}
    except OSError:
        return set()
