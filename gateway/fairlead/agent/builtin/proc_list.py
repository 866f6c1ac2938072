"""`proc.list`: lists the processes of this machine, one row each, as /proc shows them to the agent's user.

/proc is read in a thread, since a busy machine has thousands of files there. A process that ends meanwhile is left out.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import AsyncIterator
from functools import lru_cache

from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.process.descendants import stat
from fairlead.agent.errors import CommandError

ARGV = 8 << 10
"""The maximum number of bytes of a command line that are sent: a row has to fit into one chunk, and some command lines
are very long."""


class ProcList:
    """The method `proc.list` of one agent."""

    def __init__(self, disk: DiskThreads) -> None:
        self._disk = disk

    async def execute(self) -> AsyncIterator[dict[str, object]]:
        """Yields rows of pid, ppid, user, state, cpu_s, rss_bytes, started, argv. Raises CommandError `unsupported`."""
        for row in await self._disk.run(processes):
            yield row


def processes(proc: str = "/proc") -> list[dict[str, object]]:
    """The rows, by process id. Raises CommandError `unsupported`."""
    advice = "mount it, or use exec with ps"
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError as e:
        raise CommandError("unsupported", f"cannot read {proc}, which proc.list needs ({e}): {advice}") from e
    if os.getpid() not in pids:
        raise CommandError("unsupported", f"nothing is mounted at {proc}, which proc.list needs: {advice}")
    booted, rows = _booted(), []
    for pid in pids:
        try:
            rows.append(_row(pid, booted))
        except (OSError, ValueError, IndexError):
            continue  # it has ended
    return rows


def process_row(pid: int) -> dict[str, object]:
    """The row of one process. Raises OSError if there is none."""
    return _row(pid, _booted())


def _booted() -> float:
    """When the machine was booted, by the present wall clock."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _row(pid: int, booted: float) -> dict[str, object]:
    fields = stat(pid)
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    return {
        "pid": pid,
        "ppid": int(fields[1]),
        # In /proc the agent itself seems to belong to root, because it is not dumpable: see `host.process_secrets`.
        "user": _user(os.geteuid() if pid == os.getpid() else os.stat(f"/proc/{pid}").st_uid),
        "state": fields[0].decode(),
        "cpu_s": round((int(fields[11]) + int(fields[12])) / ticks, 2),
        "rss_bytes": int(fields[21]) * page,
        "started": round(booted + int(fields[19]) / ticks, 2),
        "argv": _argv(pid),
    }


def _argv(pid: int) -> list[str]:
    """The arguments. A kernel thread has none: it is shown by its name in brackets, as ps does."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        line = file.read(ARGV)
    if line:
        return line.rstrip(b"\0").decode(errors="replace").split("\0")
    with open(f"/proc/{pid}/comm", "rb") as file:
        return [f"[{file.read().rstrip().decode(errors='replace')}]"]


@lru_cache(maxsize=1024)
def _user(uid: int) -> str:
    """The user's name, or its number if it has no name. Cached, because a directory service may be slow."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
