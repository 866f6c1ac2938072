"""`proc.signal`: sends a signal to one process, and to no other that has got its id meanwhile.

The process is held by a descriptor before it is looked at, so that what was looked at gets the signal.
"""

from __future__ import annotations

import os
import signal as signals
from typing import Annotated, Literal

import msgspec

from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.proc_list import process_row
from fairlead.agent.errors import CommandError

Pid = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
Signal = Literal["CONT", "HUP", "INT", "KILL", "QUIT", "STOP", "TERM", "USR1", "USR2"]
SAME = 0.05
"""Seconds by which two readings of the start of a process may differ: the wall clock is adjusted meanwhile."""


class ProcSignal:
    """The method `proc.signal` of one agent."""

    def __init__(self, disk: DiskThreads) -> None:
        self._disk = disk

    async def execute(self, pid: Pid, signal: Signal = "TERM", started: float | None = None) -> dict[str, object]:
        """Returns {"pid", "signal", "argv"}. Raises CommandError `not_found`, `permission_denied`, `process_forbidden`
        or `unsupported`."""
        return await self._disk.run(send_signal, pid, signal, started)


def send_signal(pid: int, name: str, started: float | None) -> dict[str, object]:
    """Send the signal SIG`name`. Raises CommandError."""
    if pid == 1 or pid in (os.getpid(), os.getppid()):
        raise CommandError(
            "process_forbidden", f"process {pid} is the agent, its parent or the host's first process: name another"
        )
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError as e:
        raise _gone(pid, "there is no such process") from e
    except OSError as e:
        raise CommandError("unsupported", f"process {pid} cannot be held: {e}") from e
    try:
        row = process_row(pid)
        if started is not None and abs(float(str(row["started"])) - started) > SAME:
            raise _gone(pid, "another process has its id by now")
        signals.pidfd_send_signal(held, getattr(signals, f"SIG{name}"))
    except (ProcessLookupError, FileNotFoundError) as e:
        raise _gone(pid, "it has ended") from e
    except PermissionError as e:
        raise CommandError(
            "permission_denied", f"process {pid} belongs to somebody else: give the agent's user the right", pid=pid
        ) from e
    finally:
        os.close(held)
    return {"pid": pid, "signal": name, "argv": row["argv"]}


def _gone(pid: int, why: str) -> CommandError:
    return CommandError("not_found", f"no signal was sent to process {pid}: {why} (list them with proc.list)", pid=pid)
