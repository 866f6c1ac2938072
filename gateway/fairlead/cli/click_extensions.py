"""What the commands of `fairlead` add to click: a group with a better error, and numbers with plain ones.

Every module with options of the command line uses it. It imports click and nothing else.
"""

from __future__ import annotations

import click


class Group(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            example = self._taker(given, e.option_name)
            if not example:
                raise
            raise click.UsageError(
                f"{e.option_name} goes behind the command: {ctx.command_path} {example} {e.option_name} …", ctx
            ) from e

    def _taker(self, given: list[str], option: str) -> str:
        """A command that takes `option`, by its path from here: the one among the `given` words, if that does, or the
        first one; "" when none does."""
        for name in sorted(self.commands, key=lambda name: name not in given):
            command = self.commands[name]
            if isinstance(command, Group):
                below = command._taker(given, option)
                if below:
                    return f"{name} {below}"
            elif any(option in parameter.opts for parameter in command.params):
                return name
        return ""


class NumberRange(click.FloatRange):
    """A number, refused as: 'soon' is not a valid number."""

    name = "number"


class IntegerRange(click.IntRange):
    """A whole number, refused as: '1.5' is not a valid whole number."""

    name = "whole number"
