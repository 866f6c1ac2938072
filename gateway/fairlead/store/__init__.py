"""The Redis client of a node: pipelined batches of commands with priorities, a blocking reader of streams, Lua scripts,
errors, and an embedded Valkey server for a single node.

This file imports redis-py before any module of the package does, and hides OpenTelemetry from it: redis-py imports
OpenTelemetry wherever it is installed, for metrics of its own that Fairlead does not use. That import would take a
tenth of the CPU time of a node's start and 2.6 MB of each node.
"""

from __future__ import annotations

import sys

if "opentelemetry" not in sys.modules:
    sys.modules["opentelemetry"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        import redis.asyncio  # noqa: F401
    finally:
        del sys.modules["opentelemetry"]
