"""The tests of the hub need no fixtures of their own."""

from __future__ import annotations
