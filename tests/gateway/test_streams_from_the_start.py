"""The first stream of a node costs no more than the others: what it needs is loaded before the node is ready."""

from __future__ import annotations

import subprocess
import sys

FIRST_LOOK = """
import asyncio, sys
from starlette.requests import Request
from fairlead.cli.serve import node_server

async def gone():
    return {"type": "http.disconnect"}

async def look():
    await node_server.load_lazy_parts()
    before = set(sys.modules)
    assert await Request({"type": "http"}, gone).is_disconnected()
    print(sorted(set(sys.modules) - before))

asyncio.run(look())
"""


def test_the_first_look_at_a_caller_of_a_stream_loads_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_LOOK], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
