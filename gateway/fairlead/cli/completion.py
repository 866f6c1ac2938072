"""Shell completion: the script that a shell loads, and the agent ids that it offers.

The user's start-up file calls `fairlead completion bash` once; the shell then calls `fairlead` at each TAB, and the API
is asked for agents. A gateway that does not answer in time offers nothing and reports nothing.
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
TIMEOUT = 1.5
"""Seconds from TAB to the completions: an API in another network takes 0.1 s, a busy machine ten times as long."""
MOST_OFFERED = 200
"""The maximum number of ids that are offered: more do not help on a screen."""


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and agent ids in a shell.

    \b
    bash:  eval "$(fairlead completion bash)"        in ~/.bashrc
    zsh:   eval "$(fairlead completion zsh)"         in ~/.zshrc, after compinit
    fish:  fairlead completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "the choices are those that click knows"
    script = kind(ctx.find_root().command, {}, "fairlead", VARIABLE)
    # Not script.source(), which looks for a shell on this machine to check its version.
    click.echo(script.source_template % script.source_vars())


def complete_agent(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an argument that is an agent."""
    return [CompletionItem(one) for one in _agent_ids(ctx, incomplete)]


def complete_copy_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an argument that is a local path or AGENT:/PATH."""
    if incomplete.startswith((".", "/", "~", "-")) or ":" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    found = [CompletionItem(f"{one}:/") for one in _agent_ids(ctx, incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _agent_ids(ctx: click.Context, start: str) -> list[str]:
    import asyncio

    import fairlead.client  # noqa: F401  # loaded before the clock starts

    api = ctx.params.get("api") or os.environ.get("FAIRLEAD_API") or DEFAULT_API
    token = ctx.params.get("token") or os.environ.get("FAIRLEAD_TOKEN")
    found: list[str] = []

    async def collect(client: Client) -> None:
        async for one in client.agents():
            if one.id.startswith(start):
                found.append(one.id)
                if len(found) == MOST_OFFERED:
                    return

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT), await connect(api, token) as client:
            await collect(client)

    try:
        with ctx.scope(cleanup=False):  # the context of --context belongs to it
            asyncio.run(main())
    except Exception:  # a shell cannot show an error while it completes: offer what was found until then
        pass
    return sorted(found)
