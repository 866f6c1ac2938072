"""Which process a node is, so that another one can tell whether it still runs.

Told with each beat, read by `NodeName` when a node finds its name in use. A process of the same machine and PID
namespace can be asked after. One of the same Kubernetes pod, but of another PID namespace, was the container's last
life: a kubelet starts a container again only when the one before has ended. Of any other process nothing is known but
its beats. Reads /proc where there is one.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """`space` names the boot of the machine and the PID namespace, "" when the system does not tell; `started` is in
    clock ticks since that boot, as /proc has it; `pod` is the UID of its pod, "" outside of Kubernetes."""

    host: str
    pid: int
    space: str = ""
    started: str = ""
    pod: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "a process that does not say which"

    def packed(self) -> str:
        return f"{self.pid} {self.started or '-'} {self.space or '-'} {self.host} {self.pod}".rstrip()

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity:
        """Of what `packed` made; of anything else a process of which nothing is known."""
        pid, started, space, host, pod, *_ = [*text.split(" "), "", "", "", "", ""]
        if not pid.isdecimal():
            return cls("", 0)
        return cls(host, int(pid), "" if space == "-" else space, "" if started == "-" else started, pod)

    @classmethod
    def own(cls, pod: str = "") -> ProcessIdentity:
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _space(), _stat(pid)[1], pod)

    def gone(self, asker: ProcessIdentity) -> bool:
        """Whether it surely has ended, as far as `asker`, the process that calls, can know. False if it cannot."""
        if not self.pid or not self.space:
            return False
        if self.space != asker.space:
            return bool(asker.space and self.pod and self.pod == asker.pod)
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it is there, and another user's
        state, started = _stat(self.pid)
        return state in ("Z", "X") or bool(started and self.started and started != self.started)


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _stat(pid: int) -> tuple[str, str]:
    """State and start of a process, "" where that cannot be read. See proc(5): fields 3 and 22, behind the name."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError):
        return "", ""
