"""`fairlead cp SRC DST`: a file to an agent or from one. Called by `main`.

Here is what the two arguments mean; the copying is the matter of `transfer`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, ask
from fairlead.cli.click_extensions import NumberRange
from fairlead.cli.completion import remote_files

if TYPE_CHECKING:
    from fairlead.client import Client

_REMOTE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):(.*)", re.DOTALL)


@click.command(short_help="Copy a file to an agent, or from one.")
@api_options
@click.option(
    "--deadline",
    type=NumberRange(min=0.1, max=86400),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="Time for all of it.",
)
@click.option("--no-overwrite", is_flag=True, help="Refuse when the file is there already.")
@click.option("-p", "--parents", is_flag=True, help="Make missing folders at the agent.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, on a terminal neither.")
@click.argument("source", metavar="SRC", shell_complete=remote_files)
@click.argument("target", metavar="DST", shell_complete=remote_files)
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
) -> None:
    """Copy a file: one of SRC and DST is AGENT:/PATH, the other a path on this machine, or - for a pipe.

    \b
    fairlead cp web-1:/var/log/syslog .
    fairlead cp site.conf web-1:/etc/nginx/conf.d/
    tar c site | fairlead cp - web-1:/srv/site.tar

    The file appears at its place when all of it has come and its SHA-256 is right, with the permissions that it had.
    A lost connection is taken up again where it was.
    """
    from fairlead.cli.transfer.file_copy import CopyOptions, RemotePath, download, upload

    def remote(place: str) -> RemotePath | None:
        found = _REMOTE.fullmatch(place)
        if found is None:
            return None
        agent, path = found[1], found[2]
        if not path.startswith("/"):
            raise click.UsageError(
                f"{place!r}: a path at an agent begins with /, as in {agent}:/{path or 'PATH'}; a local file of that "
                f"name is ./{place}"
            )
        return RemotePath(agent, path)

    wishes = CopyOptions(deadline, not no_overwrite, parents, quiet)
    far_source, far_target = remote(source), remote(target)
    if far_source is not None and far_target is not None:
        raise click.UsageError(
            f"{source} and {target} are both at agents: copy to this machine first, or use a pipe: "
            f"fairlead cp {source} - | fairlead cp - {target}"
        )

    async def copy(client: Client) -> int:
        if far_source is not None:
            return await download(client, far_source, target, wishes)
        assert far_target is not None
        return await upload(client, source, far_target, wishes)

    if far_source is None and far_target is None:
        raise click.UsageError(f"neither {source} nor {target} is at an agent: write one of them as AGENT:/PATH")
    ctx.exit(ask(api, token, copy))
