"""`sys.info`: what kind of machine this is."""

from __future__ import annotations

from fairlead.agent.host.facts import host_info


async def system_info() -> dict[str, object]:
    """{"os", "kernel", "arch", "hostname", "python", "cpus", "memory_bytes", "uptime_s", "load"}."""
    return host_info()
