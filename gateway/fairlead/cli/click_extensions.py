"""What the commands of `fairlead` add to click: groups with a better error, one that imports its commands when they are
used, and numbers whose errors are plain.

Imports click and nothing else, so that `--help` stays fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class Group(click.Group):
    """A group that says where an option belongs: if only its commands take the option, it goes after the command. The
    group knows no option by name; it asks its commands.
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


class LazyGroup(Group):
    """A group that imports the module of a command only when the command is used, because each start of the program
    needs just one. Listing the commands, or naming one that does not exist, imports all modules.
    """

    def __init__(self, *args: Any, places: Mapping[str, str], **kwargs: Any) -> None:
        """`places`: the names of the commands, and for each `package.module:variable`."""
        super().__init__(*args, **kwargs)
        self._places = dict(places)

    def load(self, name: str) -> None:
        """Import one command that is not imported yet."""
        module, _, variable = self._places.pop(name).partition(":")
        self.add_command(getattr(import_module(module), variable), name)

    def load_all(self) -> Mapping[str, click.Command]:
        """Import all commands; returns them by name."""
        for name in tuple(self._places):
            self.load(name)
        return self.commands

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._places:
            self.load(cmd_name)
        elif cmd_name not in self.commands:
            self.load_all()  # the error names similar ones
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        self.load_all()
        return super().list_commands(ctx)

    def _command_with(self, option: str, given: list[str]) -> str:
        self.load_all()
        return super()._command_with(option, given)


class NumberRange(click.FloatRange):
    """A number within bounds; click's own message calls it a "float range"."""

    name = "number"


class IntegerRange(click.IntRange):
    """An integer within bounds; click's own message calls it an "integer range"."""

    name = "integer"


def parse_lifetime(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """The callback of an option that takes a lifetime, such as 90d: the seconds; None if it is not given."""
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", value)
    if found is None:
        raise click.BadParameter(f"{value!r}: expected a whole number with s, m, h or d, such as 90d", ctx, param)
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def parse_token_lifetime(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Like `parse_lifetime`, within the bounds that the API has for tokens."""
    seconds = parse_lifetime(ctx, param, value)
    if seconds is not None and not 60 <= seconds <= 366 * 86_400:
        raise click.BadParameter(f"{value!r}: expected a lifetime from 60s to 366d", ctx, param)
    return seconds
