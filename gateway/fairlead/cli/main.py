"""The command `fairlead`: its groups, and the one place where an error becomes an exit code and advice.

Started by the script of that name and by `python -m fairlead`. Importing it loads click and nothing heavier:
each command imports its room when it runs, so that `--help` and shell completion answer at once and an
agent's machine needs neither Starlette nor redis. Data goes to stdout, talk to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from fairlead.cli.agent import agent
from fairlead.cli.agents import agents
from fairlead.cli.commands import cancel, exec_, results
from fairlead.cli.completion import completion
from fairlead.cli.cp import cp
from fairlead.cli.demo import demo
from fairlead.cli.doctor import doctor
from fairlead.cli.group import Group
from fairlead.cli.mock_gateway import mock_gateway
from fairlead.cli.node import serve
from fairlead.cli.shell import shell
from fairlead.cli.swarm import swarm
from fairlead.cli.top import top
from fairlead.cli.why import why
from fairlead.errors import (
    AgentOffline,
    AgentOnline,
    AgentUnknown,
    BusUnavailable,
    CommandUnknown,
    ConfigError,
    ConnectionRefused,
    FairleadError,
    Forbidden,
    InvalidRequest,
    NodeBusy,
    RecordLost,
    ResultsTrimmed,
    Unauthorized,
    Unavailable,
)
from fairlead.text import plain
from fairlead.version import __version__

FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 1, 2, 3, 130

_ADVICE: tuple[tuple[type[FairleadError], str], ...] = (
    (Unauthorized, "give the token in FAIRLEAD_TOKEN, the one the gateway has as platform_token"),
    (Forbidden, "name the gateway as it is known, or add the name to its `allowed_hosts` or `allowed_origins`"),
    (AgentOnline, "stop the agent itself; `fairlead agents disconnect AGENT` closes a link, but the agent comes back"),
    (AgentUnknown, "`fairlead agents ls` lists those that were ever seen"),
    (CommandUnknown, "results are kept for an hour unless the gateway's `retention` says otherwise"),
    (
        ResultsTrimmed,
        "a window keeps what was not read yet: begin at the offset that is named, or run it again",
    ),
    (RecordLost, "Redis has lost its data; look whether the command had its effect before you run it again"),
    (AgentOffline, "`fairlead why AGENT` says why; --queue SECONDS waits for it"),
    (BusUnavailable, "the gateway has lost its Redis; it repairs itself, try again in some seconds"),
    (NodeBusy, "try again in some seconds"),
    (
        ConnectionRefused,
        "is it running? `fairlead demo` starts one here (as does `make run` in the sources); --api or FAIRLEAD_API "
        "names another; `fairlead doctor` tells more",
    ),
    (Unavailable, "try again in some seconds; `fairlead doctor` tells more"),
)
"""The next step for each error, the special ones before their bases."""

_FIELDS = {
    "selector": "an example: --selector 'env in (prod,dev),os=linux,!retired'",
    "from": "`fairlead results ID` shows all that there is",
    "id": "`fairlead why AGENT` lists the ids of what is open for it",
    "api": "--api http://HOST:8081, or FAIRLEAD_API",
}
"""The next step for a fault in one field, where the message alone does not tell it."""


class _Group(Group):
    """A group that ends the process with the documented code for each error of the house."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FairleadError as e:
            _tell(e)
            ctx.exit(exit_code(e))
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output has gone (`… | head`): Python's exit must not flush anything to it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(141)  # 128 + SIGPIPE, as the shell would show it
        except OSError as e:
            # What concerns a file or a connection was told where it happened: what is left is our own output.
            click.echo(f"fairlead: {plain(str(e.filename or 'stdout'))}: {e.strerror or e}", err=True)
            click.echo("  → look at where the output goes to: is that disk full?", err=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(FAILED)
        except ModuleNotFoundError as e:
            if (e.name or "").partition(".")[0] == "fairlead":
                raise
            click.echo(f"fairlead: this command needs the package {e.name}", err=True)
            click.echo("  → pip install 'fairlead[gateway,cli]'", err=True)
            ctx.exit(FAILED)


def exit_code(error: FairleadError) -> int:
    if isinstance(error, RecordLost | AgentOnline):
        return FAILED
    if isinstance(error, InvalidRequest | ConfigError):
        return USAGE
    return UNAVAILABLE if isinstance(error, Unavailable | ConnectionRefused) else FAILED


def _tell(error: FairleadError) -> None:
    # Only the faults of a configuration are lines of our own; in all else others may have had a say.
    lines = error.message.split("\n") if isinstance(error, ConfigError) else [error.message]
    message = "\n".join(map(plain, lines))
    click.echo(f"fairlead: {message}", err=True)
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            click.echo(f"  → {advice}", err=True)
            return
    field = str(error.details.get("field", "")).partition("[")[0]
    if field in _FIELDS:
        click.echo(f"  → {_FIELDS[field]}", err=True)
    elif error.details.get("status") and not error.details.get("code"):
        click.echo("  → is that the address of Fairlead's API? `fairlead doctor` tells more", err=True)
    elif error.details.get("code") == "internal":
        click.echo("  → the gateway's log tells more", err=True)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="To begin: `fairlead demo` runs all of it on this machine, then in another terminal `fairlead agents ls` "
    "and `fairlead exec agent-1 -- uname -a`.\n\n"
    "Exit codes: 0 ok; 1 failed; 2 wrong usage or settings; 3 not available (agent offline, gateway "
    "or its Redis not reachable); 4 deadline passed; 130 interrupted. `exec`, `results` and `shell` exit with the "
    "code of the remote program, or with 128 + n when signal n ended it.",
)
def cli() -> None:
    """Run commands on a fleet of agents, through gateways that hold one link to each."""


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


for _command in (
    serve, demo, agent, agents, exec_, results, cancel, shell, cp, why, doctor, top, completion, swarm, mock_gateway,
):  # fmt: skip
    cli.add_command(_command)


def main() -> NoReturn:
    cli(prog_name="fairlead")
    raise SystemExit(0)  # click has left before; this tells the type checker
