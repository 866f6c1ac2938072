"""Numbers with bounds as the values of options, refused in plain words: click calls them "float range" otherwise.

Used by every command that takes such an option.
"""

from __future__ import annotations

import click


class NumberRange(click.FloatRange):
    """A number, refused as: 'soon' is not a valid number."""

    name = "number"


class WholeRange(click.IntRange):
    """A whole number, refused as: '1.5' is not a valid whole number."""

    name = "whole number"
