"""Whether a part of the demo answers: a node by its probe, an agent by its state in the API.

Used by `demo`. A part counts as started when it answers, not when its process exists.
"""

from __future__ import annotations

import asyncio

from fairlead.cli.demo.ports import HOST
from fairlead.client import Client
from fairlead.errors import FairleadError

PROBE_TIMEOUT = 2.0
"""Seconds for the answer of a probe on this machine."""


async def is_node_ready(admin_port: int) -> bool:
    """GET /readyz by hand: one line of HTTP needs no client."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            reader, writer = await asyncio.open_connection(HOST, admin_port)
            try:
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def is_agent_online(client: Client, agent: str) -> bool:
    try:
        return (await client.agent(agent)).state == "online"
    except FairleadError:
        return False  # the agent has not registered yet, or the API is still starting: the caller asks again
