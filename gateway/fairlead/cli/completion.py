"""Shell completion: the script that a shell loads, and the ids of agents that it offers.

`fairlead completion bash` is called once by the user's start-up file; afterwards the shell calls us at each TAB. Then
the API is asked for agents, with a deadline of less than people notice: a gateway that does not answer offers nothing
and says nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from fairlead.cli.api_options import DEFAULT_API, connect

if TYPE_CHECKING:
    from fairlead.client import Client

VARIABLE = "_FAIRLEAD_COMPLETE"
PATIENCE = 1.5
"""Seconds from TAB to an answer, or to none: one network away takes a tenth, a busy machine ten."""
OFFERED = 200
"""More than these are no help on a screen."""


@click.command(short_help="Print the script that completes commands and agents in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and the ids of agents.

    \b
    bash:  eval "$(fairlead completion bash)"        in ~/.bashrc
    zsh:   eval "$(fairlead completion zsh)"         in ~/.zshrc, after compinit
    fish:  fairlead completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "the choices are those that click knows"
    script = kind(ctx.find_root().command, {}, "fairlead", VARIABLE)
    # Not script.source(), which looks for a shell of this machine to check its version.
    click.echo(script.source_template % script.source_vars())


def agent_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For an argument that is an agent."""
    return [CompletionItem(one) for one in _ids(ctx, incomplete)]


def remote_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a file here or at an agent."""
    if incomplete.startswith((".", "/", "~", "-")) or ":" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    found = [CompletionItem(f"{one}:/") for one in _ids(ctx, incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _ids(ctx: click.Context, start: str) -> list[str]:
    import asyncio

    import fairlead.client  # noqa: F401  # before the clock runs

    api = ctx.params.get("api") or os.environ.get("FAIRLEAD_API") or DEFAULT_API
    token = ctx.params.get("token") or os.environ.get("FAIRLEAD_TOKEN")
    found: list[str] = []

    async def collect(client: Client) -> None:
        async for one in client.agents():
            if one.id.startswith(start):
                found.append(one.id)
                if len(found) == OFFERED:
                    return

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), connect(api, token) as client:
            await collect(client)

    try:
        asyncio.run(main())
    except Exception:  # a shell that completes has no place for an error: what was found until then is offered
        pass
    return sorted(found)
