"""An API server for the run and a namespace for each test: see support.control_plane."""

from __future__ import annotations

from support.control_plane import control_plane, valkey_server, world

__all__ = ["control_plane", "valkey_server", "world"]
