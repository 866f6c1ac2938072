"""Lets the hub's tests import their helpers."""

from __future__ import annotations
