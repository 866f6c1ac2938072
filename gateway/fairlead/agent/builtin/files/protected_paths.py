"""The paths that the platform cannot access through `file.get` and `file.put`: the agent's own files, and what it may
run.

Made by `builtin_agent`. The agent's own files (token, configuration, journal, unit) are neither read nor written,
whatever the roots are. The list `exec.allow` would be worthless if files could be put where its programs are, where
they load libraries from, or where the host runs programs by itself. If the list is set, no root of `file.put` may
contain such a path or lie in one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fairlead

LINKS = 40
"""The maximum number of symbolic links that are followed along one path, which is Linux's own limit."""


@dataclass(frozen=True, slots=True)
class ProtectedPath:
    """A path and what it is, in words. `whole`: everything beneath it, too. `secret`: it must not be read either."""

    path: str
    description: str
    whole: bool = False
    secret: bool = False


UNIT_FOLDERS = (
    "/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient", "/etc/systemd/system",
    "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
    "/etc/systemd/user", "/run/systemd/user", "/usr/lib/systemd/user", "~/.config/systemd/user",
)  # fmt: skip
"""Where systemd looks for a unit and its drop-ins (systemd.unit(5))."""

_HOST = (
    "/bin", "/boot", "/dev", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run/systemd", "/sbin", "/sys",
    "/usr", "/var/spool/cron", "/etc/alternatives", "/etc/apt", "/etc/cron.d", "/etc/cron.daily", "/etc/cron.hourly",
    "/etc/cron.monthly", "/etc/cron.weekly", "/etc/init.d", "/etc/ld.so.conf.d", "/etc/modprobe.d", "/etc/pam.d",
    "/etc/profile.d", "/etc/security", "/etc/ssh", "/etc/sudoers.d", "/etc/systemd", "/etc/udev", "/etc/yum.repos.d",
    "~/.config", "~/.local", "~/.ssh",
)  # fmt: skip
"""Folders of programs, of the libraries that they load, and of what the host or a login runs by itself."""
_HOST_FILES = "/etc", "/home", "~"
"""Folders that contain such files directly (/etc/ld.so.preload, ~/.profile), but whose subfolders are not protected."""


def own_paths(
    files: Iterable[Path | str], journal: str | os.PathLike[str] | None, identity: Path | None = None
) -> list[ProtectedPath]:
    """The agent's own paths: the files that it was given, its journal, its identity, and the systemd unit that it runs
    as."""
    found = [ProtectedPath(os.path.abspath(path), "one of the agent's own files", secret=True) for path in files]
    if identity is not None:
        found.append(ProtectedPath(os.path.abspath(identity), "the agent's identity", whole=True, secret=True))
    if journal is not None:
        found.append(ProtectedPath(os.path.abspath(journal), "the agent's journal", whole=True, secret=True))
    try:
        cgroups = Path("/proc/self/cgroup").read_text()
    except OSError:
        return found
    return found + unit_paths(cgroups)


def unit_paths(cgroups: str) -> list[ProtectedPath]:
    """The systemd unit of a process, by its /proc/PID/cgroup."""
    names = set(re.findall(r"(?m)/([^/\n]+\.service)$", cgroups))
    return [
        guarded
        for name in sorted(names)
        for folder in UNIT_FOLDERS
        for guarded in (
            ProtectedPath(f"{os.path.expanduser(folder)}/{name}", "the agent's unit", secret=True),
            ProtectedPath(f"{os.path.expanduser(folder)}/{name}.d", "the agent's unit", whole=True, secret=True),
        )
    ]


def program_paths(programs: Iterable[str]) -> list[ProtectedPath]:
    """The paths that determine what the listed programs do: the programs, their folders and interpreters, the agent's
    own modules, and what the host runs by itself.
    """
    found = []
    for program in programs:
        found += _program(program, f"the allowed program {program}")
        found += [one for path in _interpreters(program) for one in _program(path, f"what runs {program}")]
    for path in (sys.executable, sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), *fairlead.__path__):
        if path:
            found += [
                ProtectedPath(one, "the agent's own program", whole=True) for one in {path, os.path.realpath(path)}
            ]
    here = os.getcwd()
    for path in dict.fromkeys(map(os.path.abspath, sys.path)):  # "" is the working directory
        # Nothing is imported from the subfolders of the folder in which `python -m` runs, and they may well contain
        # data.
        found.append(ProtectedPath(path, "a folder that the agent loads modules from", whole=path not in ("/", here)))
    found += [
        ProtectedPath(os.path.expanduser(path), "a folder that this host runs programs from", True) for path in _HOST
    ]
    found += [
        ProtectedPath(os.path.expanduser(path), "a folder that this host runs programs from") for path in _HOST_FILES
    ]
    return found


def _program(path: str, what: str) -> list[ProtectedPath]:
    """The program and its folder, from which a script or a loader may load more files; / as a whole is excepted."""
    folders = {os.path.realpath(os.path.dirname(path)), os.path.dirname(os.path.realpath(path))} - {"/"}
    return [
        ProtectedPath(path, what),
        *(ProtectedPath(folder, f"the folder of {what}", whole=True) for folder in sorted(folders)),
    ]


def _interpreters(program: str) -> Iterator[str]:
    """The interpreters in the first line of a script."""
    try:
        with open(program, "rb") as file:
            line = file.readline(512)
    except OSError:
        return
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    if words:
        yield words[0]
    if words and os.path.basename(words[0]) == "env":
        for word in words[1:]:
            if not word.startswith("-") and "=" not in word:
                if (found := shutil.which(word)) is not None:
                    yield found
                return


def resolve_links(path: str) -> list[str]:
    """The symbolic links along `path`, and finally the path that it leads to, which need not exist."""
    left = list(reversed(path.split("/")))
    passed: list[str] = []
    at = "/"
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, name)
        try:
            target = os.readlink(here) if len(passed) < LINKS else None
        except OSError:
            target = None  # not a link
        if target is None:
            at = here
            continue
        passed.append(here)
        left += reversed(target.split("/"))
        at = "/" if target.startswith("/") else at
    return [*passed, at]


def is_beneath(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def conflicts(root: str, guarded: Iterable[ProtectedPath]) -> Iterator[ProtectedPath]:
    """The protected paths that a folder contains, or lies in."""
    real = os.path.realpath(root)
    for one in guarded:
        passed = resolve_links(one.path)
        if any(is_beneath(link, real) for link in passed) or (one.whole and is_beneath(real, passed[-1])):
            yield one
