"""Identifies the process of a node, so that another process can tell whether it still runs.

A node reports its identity with each heartbeat; `NodeName` reads it when a node finds its name in use. A process on the
same machine and in the same PID namespace can be looked up. A process of the same Kubernetes pod but of another PID
namespace was an earlier start of the container: a kubelet starts a container again only after the earlier one has
ended. Of any other process nothing is known but its heartbeats. This module reads /proc where there is one.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """`space` names the machine's boot and the PID namespace, "" if the system does not report it. `started` is in
    clock ticks since that boot, as in /proc. `pod` is the UID of the pod, "" outside of Kubernetes."""

    host: str
    pid: int
    space: str = ""
    started: str = ""
    pod: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "an unknown process"

    def packed(self) -> str:
        return f"{self.pid} {self.started or '-'} {self.space or '-'} {self.host} {self.pod}".rstrip()

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity:
        """Parse what `packed` wrote. Any other text gives a process of which nothing is known."""
        pid, started, space, host, pod, *_ = [*text.split(" "), "", "", "", "", ""]
        if not pid.isdecimal():
            return cls("", 0)
        return cls(host, int(pid), "" if space == "-" else space, "" if started == "-" else started, pod)

    @classmethod
    def own(cls, pod: str = "") -> ProcessIdentity:
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _space(), _stat(pid)[1], pod)

    def has_ended(self, asker: ProcessIdentity) -> bool:
        """Whether the process has certainly ended; False if that cannot be known. `asker` is the calling process."""
        if not self.pid or not self.space:
            return False
        if self.space != asker.space:
            return bool(asker.space and self.pod and self.pod == asker.pod)
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it exists and belongs to another user
        state, started = _stat(self.pid)
        return state in ("Z", "X") or bool(started and self.started and started != self.started)


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """State and start time of a process, "" if they cannot be read: fields 3 and 22 of proc(5), after the name."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError):
        return "", ""
