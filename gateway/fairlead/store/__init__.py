"""The Redis client of a node: pipelined batches of commands with priorities, a blocking reader of streams, Lua scripts,
errors, and an embedded Valkey server for a single node.

Imports redis-py, before any of its modules does, without OpenTelemetry: redis-py imports that wherever it is installed,
for metrics of its own which nobody turns on here. That would be a tenth of the CPU time of a node's start, and 2.6 MB
of each node.
"""

from __future__ import annotations

import sys

if "opentelemetry" not in sys.modules:
    sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # documented: an import of it fails
    try:
        import redis.asyncio  # noqa: F401
    finally:
        del sys.modules["opentelemetry"]
