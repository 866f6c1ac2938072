"""How much memory a process has that is its own: what would be free if it ended.

Asked by the crew before its first agent and whenever it counts. Not the resident size, which holds the interpreter's
pages too that all processes of the swarm share.
"""

from __future__ import annotations

from pathlib import Path

ROLLUP = Path("/proc/self/smaps_rollup")


def own_bytes() -> int:
    """0 where the system does not tell (it is Linux that does)."""
    try:
        lines = ROLLUP.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))
