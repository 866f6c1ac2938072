"""All processes that came of one program, found through /proc: also those that left its group, or became daemons.

Used to kill what a cancelled `exec` has started. Three signs, since each can be shed: the parent (an orphan's is
init), the session (setsid leaves it), and a mark in the environment, which a daemon rarely cleans.
"""

from __future__ import annotations

import os
import signal

COMMAND_VARIABLE = "FAIRLEAD_COMMAND"
"""Environment variable that holds the command's id in all that it starts; scripts may read it too."""


def descendants(leader: int, command: str) -> dict[int, int]:
    """Process ids beside the leader's, each with its start time, since an id alone may be another's a second later.

    Empty where there is no /proc. Reads two files per process of the machine: call it in a thread.
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
            continue  # it has ended, or is not ours to look at
    waiting = [leader, *found]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return {pid: born[pid] for pid in found if pid in born and pid not in (leader, os.getpid())}


def kill(family: dict[int, int]) -> None:
    """SIGKILL to those that are still the same processes."""
    for pid, born in family.items():
        try:
            if int(stat(pid)[19]) == born:
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError, IndexError):
            continue


def stat(pid: int) -> list[bytes]:
    """State, parent, group, session … The name before them may hold anything: read behind its last bracket."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []  # another user's
