"""`sys.info`: what kind of host this is, in one small object."""

from __future__ import annotations

import os
import platform
import time


async def system_info() -> dict[str, object]:
    """os, kernel, arch, hostname, python, cpus, memory_bytes, uptime_s, load: None where the host does not tell."""
    return {
        "os": platform.system().lower(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "hostname": platform.node(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_bytes": _memory(),
        "uptime_s": _uptime(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _uptime() -> float | None:
    try:
        return round(time.clock_gettime(time.CLOCK_BOOTTIME), 1)
    except (AttributeError, OSError):
        return None
