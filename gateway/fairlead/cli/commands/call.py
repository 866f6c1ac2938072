"""`fairlead call`: runs any method on an agent, with its arguments from the command line.

`exec`, `shell` and `cp` know their methods; this command knows none, so it also reaches those of the user's own agents.
`terminal` follows the command.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Literal, Unpack

import click

from fairlead.cli.api_options import api_options, approval_option, call_api
from fairlead.cli.command_options import TermOptions, command_options
from fairlead.cli.completion import complete_agent
from fairlead.cli.payload_options import MethodCommand, check_input, payload_options, read_payload
from fairlead.cli.signing_options import SigningOptions, load_signer, signing_options

if TYPE_CHECKING:
    from fairlead.client import Client


@click.command(cls=MethodCommand, short_help="Run any method on an agent.")
@api_options
@signing_options
@approval_option
@command_options(deadline=60)
@click.option(
    "--retry",
    type=click.Choice(["never", "safe"]),
    default="never",
    show_default=True,
    help="Choose safe if the agent may run the method twice when its link is lost.",
)
@click.option("-i", "--stdin", "send", is_flag=True, help="Send stdin as the input of the command.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: output and result as they are, or one JSON object per line, as in the API's stream.",
)
@click.argument("agent", shell_complete=complete_agent)
@click.argument("method")
@payload_options
@click.pass_context
def call(
    ctx: click.Context,
    api: str,
    token: str | None,
    document: str | None,
    file: IO[bytes] | None,
    unchecked: bool,
    send: bool,
    output: str,
    agent: str,
    method: str,
    words: tuple[str, ...],
    deadline: float,
    queue: float | None,
    lane: Literal["interactive", "bulk"],
    retry: Literal["never", "safe"],
    **signing: Unpack[SigningOptions],
) -> None:
    """Run any method on an agent: fairlead call web-1 backup.start volume=/srv full:=true

    KEY=TEXT is an argument that is a text, KEY:=JSON one of any other type; those of the methods that `fairlead methods
    ls` lists are checked before anything is sent. Prints the output as it comes, and then
    the result as JSON. Ctrl-C cancels the command and waits up to 10 s for its end; a second Ctrl-C exits at once.
    """
    from fairlead.cli.terminal.attach import follow_command, pipe_stdin
    from fairlead.cli.terminal.results import JsonLines, MethodOutput

    if document == "@-" and send:
        raise click.UsageError("--json @- and --stdin both read stdin: expected one of them")
    payload, data = read_payload(method, document, words, file, unchecked=unchecked)
    if not unchecked:
        check_input(method, payload, file=data is not None, sends=send, agent=agent)
    terms: TermOptions = {"deadline": deadline, "queue": queue, "lane": lane}

    async def run(client: Client) -> int:
        content = "" if data is None else await client.store_content(data)
        command = client.command(
            agent, method, payload, **terms, retry=retry, takes_input=send, content=content, unchecked=unchecked
        )
        printer = JsonLines() if output == "json" else MethodOutput()
        return await follow_command(command, printer, pipe_stdin if send else None, cancels=True)

    ctx.exit(call_api(api, token, run, load_signer(signing)))
