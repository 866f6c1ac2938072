"""The share of its memory limit that this process's container uses, as the OOM killer counts it.

`LoadReport` asks with each heartbeat. Linux reports it in the files of the control group (cgroup v2, cgroup-v2.rst):
memory.current without what the kernel would give back first (inactive_file), over memory.max. The kubelet computes the
working set of a container in the same way.
"""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where a container sees its own control group."""


def memory_share(cgroup: Path = CGROUP) -> float:
    """The share from 0 to 1; 0 without a limit, and where the kernel does not report it."""
    try:
        limit = (cgroup / "memory.max").read_bytes().strip()
        if limit == b"max":
            return 0.0
        used = int((cgroup / "memory.current").read_bytes())
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_bytes().splitlines())
        working_set = used - int(statistics.get(b"inactive_file", 0))
        return min(1.0, max(0.0, working_set / int(limit)))
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0
