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

from fairlead.cli import exit_codes
from fairlead.cli.click_extensions import Group
from fairlead.cli.commands.agent import agent
from fairlead.cli.commands.agents import agents
from fairlead.cli.commands.cp import cp
from fairlead.cli.commands.demo import demo
from fairlead.cli.commands.doctor import doctor
from fairlead.cli.commands.exec import cancel, exec_, results
from fairlead.cli.commands.mock_gateway import mock_gateway
from fairlead.cli.commands.serve import serve
from fairlead.cli.commands.shell import shell
from fairlead.cli.commands.swarm import swarm
from fairlead.cli.commands.top import top
from fairlead.cli.commands.why import why
from fairlead.cli.completion import completion
from fairlead.cli.error_report import exit_code, report_error
from fairlead.errors import FairleadError
from fairlead.text import plain
from fairlead.version import __version__


class _Group(Group):
    """A group that ends the process with the documented code for each error of the house."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FairleadError as e:
            report_error(e)
            ctx.exit(exit_code(e))
        except KeyboardInterrupt:
            ctx.exit(exit_codes.INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output has gone (`… | head`): Python's exit must not flush anything to it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(exit_codes.BROKEN_PIPE)
        except OSError as e:
            # What concerns a file or a connection was told where it happened: what is left is our own output.
            click.echo(f"fairlead: {plain(str(e.filename or 'stdout'))}: {e.strerror or e}", err=True)
            click.echo("  → look at where the output goes to: is that disk full?", err=True)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(exit_codes.FAILED)
        except ModuleNotFoundError as e:
            if (e.name or "").partition(".")[0] == "fairlead":
                raise
            click.echo(f"fairlead: this command needs the package {e.name}", err=True)
            click.echo("  → pip install 'fairlead[gateway,cli]'", err=True)
            ctx.exit(exit_codes.FAILED)


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
