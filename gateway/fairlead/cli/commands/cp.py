"""`fairlead cp SRC DST`: copies a file to an agent or from one.

This module reads the two arguments; `transfer` copies.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Unpack

import click

from fairlead.cli.api_options import api_options, approval_option, call_api
from fairlead.cli.click_extensions import NumberRange
from fairlead.cli.completion import complete_copy_path
from fairlead.cli.signing_options import SigningOptions, load_signer, signing_options

if TYPE_CHECKING:
    from fairlead.cli.transfer.file_copy import RemotePath
    from fairlead.client import Client

_REMOTE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):(.*)", re.DOTALL)


@click.command(short_help="Copy a file to an agent, or from one.")
@api_options
@signing_options
@approval_option
@click.option(
    "--deadline",
    type=NumberRange(min=0.1, max=86400),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of the whole copy.",
)
@click.option("--no-overwrite", is_flag=True, help="Fail if the file exists.")
@click.option("-p", "--parents", is_flag=True, help="Create missing folders on the agent.")
@click.option("-q", "--quiet", is_flag=True, help="Hide progress, even on a terminal.")
@click.argument("source", metavar="SRC", shell_complete=complete_copy_path)
@click.argument("target", metavar="DST", shell_complete=complete_copy_path)
@click.pass_context
def cp(
    ctx: click.Context,
    api: str,
    token: str | None,
    deadline: float,
    no_overwrite: bool,
    parents: bool,
    quiet: bool,
    source: str,
    target: str,
    **signing: Unpack[SigningOptions],
) -> None:
    """Copy a file. One of SRC and DST is AGENT:/PATH, the other a path on this machine, or - for a pipe.

    \b
    fairlead cp web-1:/var/log/syslog .
    fairlead cp site.conf web-1:/etc/nginx/conf.d/
    tar c site | fairlead cp - web-1:/srv/site.tar

    The file appears under its name once it is complete and its SHA-256 matches, with the permissions of the original.
    A copy continues after a lost connection.
    """
    from fairlead.cli.transfer.file_copy import CopyOptions, download, upload

    options = CopyOptions(deadline, not no_overwrite, parents, quiet)
    remote_source, remote_target = _remote_path(source), _remote_path(target)
    if remote_source is not None and remote_target is not None:
        raise click.UsageError(
            f"{source} and {target} are both on agents: copy to this machine first, or use a pipe: "
            f"fairlead cp {source} - | fairlead cp - {target}"
        )

    async def copy(client: Client) -> int:
        if remote_source is not None:
            return await download(client, remote_source, target, options)
        assert remote_target is not None
        return await upload(client, source, remote_target, options)

    if remote_source is None and remote_target is None:
        raise click.UsageError(f"neither {source} nor {target} is on an agent: write one of them as AGENT:/PATH")
    ctx.exit(call_api(api, token, copy, load_signer(signing)))


def _remote_path(argument: str) -> RemotePath | None:
    """None for a path on this machine. Raises UsageError for a path on an agent that is not absolute."""
    from fairlead.cli.transfer.file_copy import RemotePath

    found = _REMOTE.fullmatch(argument)
    if found is None:
        return None
    agent, path = found[1], found[2]
    if not path.startswith("/"):
        raise click.UsageError(
            f"{argument!r}: a path on an agent starts with /, as in {agent}:/{path or 'PATH'}; for a local file of "
            f"that name, write ./{argument}"
        )
    return RemotePath(agent, path)
