"""The options of every command that runs a method on one agent: its deadline, its queue and its lane.

`exec` and `call` use them. The API describes what they mean; this module only reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict, TypeVar

import click

from fairlead.cli.click_extensions import NumberRange

F = TypeVar("F", bound=Callable[..., object])


class TermOptions(TypedDict):
    deadline: float
    queue: float | None
    lane: Literal["interactive", "bulk"]


def command_options(deadline: int) -> Callable[[F], F]:
    """Add --deadline with this default, in seconds, --queue and --lane."""
    limit = click.option(
        "--deadline", type=NumberRange(min=0.1, max=86400), default=deadline, show_default=True, metavar="SECONDS",
        help="Time limit of the whole command.",
    )  # fmt: skip
    queue = click.option(
        "--queue", type=NumberRange(min=0.1), metavar="SECONDS", help="Wait up to SECONDS for an offline agent."
    )
    lane = click.option(
        "--lane", type=click.Choice(["interactive", "bulk"]), default="interactive", show_default=True,
        help="Choose bulk for large output: other commands on the link then take precedence.",
    )  # fmt: skip
    return lambda command: limit(queue(lane(command)))
