"""An API server for the run, a namespace for each test, and operators as processes: see tests/support."""

from __future__ import annotations

from support.control_plane import control_plane, namespace, valkey_server
from support.operator_replica import start

__all__ = ["control_plane", "namespace", "start", "valkey_server"]
