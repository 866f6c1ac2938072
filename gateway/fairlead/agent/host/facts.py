"""What kind of machine this is: the facts of hello, and what `sys.info` answers.

Asked once at start for the facts. None, or left out, where the host does not tell.
"""

from __future__ import annotations

import os
import platform
import time

from fairlead.version import __version__


def host_facts() -> dict[str, str]:
    """What every agent tells of its host; the user's own facts go over these."""
    return {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "hostname": platform.node(),
        "python": platform.python_version(),
        "sdk": __version__,
    }


def host_info() -> dict[str, object]:
    """os, kernel, arch, hostname, python, cpus, memory_bytes, uptime_s, load."""
    return {
        "os": platform.system().lower(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "hostname": platform.node(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_bytes": _memory(),
        "uptime_s": _uptime(),
        "load": _load(),
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


def _load() -> list[float] | None:
    try:
        return list(os.getloadavg())
    except (AttributeError, OSError):
        return None
