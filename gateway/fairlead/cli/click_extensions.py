"""What the commands of `fairlead` add to click: a group with a better error, and numbers with plain ones.

Imports click and nothing else, so that `--help` stays fast.
"""

from __future__ import annotations

import click


class Group(click.Group):
    """A group that, given an option which only its commands take, says that the option goes after the command.

    It knows no option by name: it asks its commands.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as e:
            example = self._command_with(e.option_name, given)
            if not example:
                raise
            raise click.UsageError(
                f"{e.option_name} goes after the command: {ctx.command_path} {example} {e.option_name} …", ctx
            ) from e

    def _command_with(self, option: str, given: list[str]) -> str:
        """The path from here to a command that takes `option`: one among the `given` words, or the first one.

        Empty when no command takes it.
        """
        for name in sorted(self.commands, key=lambda name: name not in given):
            command = self.commands[name]
            if isinstance(command, Group):
                below = command._command_with(option, given)
                if below:
                    return f"{name} {below}"
            elif any(option in parameter.opts for parameter in command.params):
                return name
        return ""


class NumberRange(click.FloatRange):
    """A number within bounds; click's own message calls it a "float range"."""

    name = "number"


class IntegerRange(click.IntRange):
    """An integer within bounds; click's own message calls it an "integer range"."""

    name = "integer"
