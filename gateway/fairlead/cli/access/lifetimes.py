"""Lifetimes on the command line, such as 90d. Used by the commands that create tokens."""

from __future__ import annotations

import re
from typing import Final

import click

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_lifetime(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A whole number with a unit, as seconds."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", value)
    if found is None:
        raise click.BadParameter(f"{value!r}: expected a whole number with s, m, h or d, such as 90d", ctx, param)
    return float(found[1]) * UNITS[found[2]]
