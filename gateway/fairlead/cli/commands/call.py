"""`fairlead call`: runs any method on an agent, with its arguments from the command line.

`exec`, `shell` and `cp` know their methods; this command knows none, so it also reaches those of the user's own agents.
`terminal` follows the command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import click

from fairlead.cli.api_options import api_options, approval_option, call_api
from fairlead.cli.command_options import TermOptions, command_options, unchecked_option
from fairlead.cli.completion import complete_agent
from fairlead.cli.signing_options import SigningOptions, load_signer, signing_options

if TYPE_CHECKING:
    from fairlead.client import Client


@click.command(short_help="Run any method on an agent.")
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
@click.option("--json", "document", metavar="JSON", help="All arguments as one JSON value; @FILE reads it, @- stdin.")
@unchecked_option
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
@click.argument("arguments", nargs=-1, metavar="[KEY=TEXT|KEY:=JSON]...")
@click.pass_context
def call(
    ctx: click.Context,
    api: str,
    token: str | None,
    document: str | None,
    unchecked: bool,
    send: bool,
    output: str,
    agent: str,
    method: str,
    arguments: tuple[str, ...],
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
    from fairlead.methods.library import check_arguments

    if document is not None and arguments:
        raise click.UsageError("--json beside KEY=TEXT: expected one of them")
    if document == "@-" and send:
        raise click.UsageError("--json @- and --stdin both read stdin: expected one of them")
    payload = parse_arguments(arguments) if document is None else _read_document(document)
    if not unchecked:
        check_arguments(method, payload)
    terms: TermOptions = {"deadline": deadline, "queue": queue, "lane": lane}

    async def run(client: Client) -> int:
        command = client.command(agent, method, payload, **terms, retry=retry, takes_input=send, unchecked=unchecked)
        printer = JsonLines() if output == "json" else MethodOutput()
        return await follow_command(command, printer, pipe_stdin if send else None, cancels=True)

    ctx.exit(call_api(api, token, run, load_signer(signing)))


def parse_arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """KEY=TEXT and KEY:=JSON as a mapping. Raises BadParameter for what is neither, and for a key that comes twice."""
    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        as_json = key.endswith(":")
        name = key[:-1] if as_json else key
        if not sign or not name:
            raise click.BadParameter(f"{word!r}: expected KEY=TEXT or KEY:=JSON", param_hint="argument")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice: give it once", param_hint="argument")
        found[name] = _decode(value, f"the value of {name!r}") if as_json else value
    return found


def _read_document(text: str) -> object:
    """The value of --json. Raises BadParameter if its file cannot be read, or it is no JSON."""
    if not text.startswith("@"):
        return _decode(text, "--json")
    if text == "@-":
        return _decode(_stdin_text(), "stdin")
    try:
        return _decode(Path(text[1:]).read_text("utf-8"), text[1:])
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "expected UTF-8"
        raise click.BadParameter(f"cannot read {text[1:]}: {reason}", param_hint="--json") from e


def _stdin_text() -> str:
    import sys

    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as e:
        raise click.BadParameter("stdin is not UTF-8: expected JSON in UTF-8", param_hint="--json") from e


def _decode(text: str, what: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as e:
        raise click.BadParameter(
            f'{what} is not JSON ({e}): expected such as 5, true, [1,2] or "text"', param_hint="argument"
        ) from e
