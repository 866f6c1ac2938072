"""Lets the tests of the hub import what they share."""

from __future__ import annotations
