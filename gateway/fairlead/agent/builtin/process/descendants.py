"""Finds all descendants of a program through /proc, including those that left its process group or became daemons.

Used to kill what a cancelled `exec` has started. It looks for three signs, since a process can lose any of them: its
parent (an orphan's is init), its session (setsid leaves it), and an environment variable, which a daemon rarely
removes.
"""

from __future__ import annotations

import os
import signal

COMMAND_VARIABLE = "FAIRLEAD_COMMAND"
"""The environment variable that contains the command's id in every process that the command starts. Scripts may read
it, too."""


def descendants(leader: int, command: str) -> dict[int, int]:
    """The process ids of all descendants of `leader`, each with its start time, since ids are reused.

    Empty if there is no /proc. It reads two files for each process of the machine, so call it in a thread.
    """
    children: dict[int, list[int]] = {}
    born: dict[int, int] = {}
    found: set[int] = set()
    mark = f"{COMMAND_VARIABLE}={command}".encode()
    try:
        entries = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    for pid in entries:
        try:
            fields = stat(pid)
            children.setdefault(int(fields[1]), []).append(pid)
            born[pid] = int(fields[19])
            if int(fields[3]) == leader or mark in _environment(pid):
                found.add(pid)
        except (OSError, ValueError, IndexError):
            continue  # it has ended, or may not be read
    waiting = [leader, *found]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return {pid: born[pid] for pid in found if pid in born and pid not in (leader, os.getpid())}


def kill(processes: dict[int, int]) -> None:
    """Send SIGKILL to those that are still the same processes."""
    for pid, born in processes.items():
        try:
            if int(stat(pid)[19]) == born:
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue


def stat(pid: int) -> list[bytes]:
    """State, parent, group, session … of /proc/PID/stat. They follow the last closing parenthesis, because the
    program's name before it may contain anything.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []  # it belongs to another user
