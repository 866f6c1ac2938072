"""The entry point of `fairlead`: the root command, and how an error becomes an exit code.

Started by the script of that name and by `python -m fairlead`. Importing this module loads click but no command: the
module of a command is imported when it is used, and imports what it needs when it runs. Therefore `--help` and shell
completion answer at once, and an agent's machine needs neither Starlette nor redis. Data goes to stdout, messages to
the user go to stderr.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

import click

from fairlead.cli import exit_codes
from fairlead.cli.click_extensions import LazyGroup
from fairlead.cli.error_report import exit_code, report_error
from fairlead.errors import FairleadError
from fairlead.text import plain
from fairlead.version import __version__

COMMANDS = {
    **{
        name: f"fairlead.cli.commands.{name}:{name}"
        for name in ("agent", "call", "cp", "demo", "doctor", "serve", "shell", "swarm")
    },
    **{
        name: f"fairlead.cli.fleet.{name}:{name}"
        for name in ("agents", "commands", "events", "methods", "nodes", "store", "tenants", "top", "why")
    },
    "redis": "fairlead.cli.redis.commands:redis",
    "exec": "fairlead.cli.commands.exec:exec_",
    "results": "fairlead.cli.commands.exec:results",
    "cancel": "fairlead.cli.commands.exec:cancel",
    "run": "fairlead.cli.runs.run:run",
    "runs": "fairlead.cli.runs.run:runs",
    "schedules": "fairlead.cli.runs.schedules:schedules",
    "drain": "fairlead.cli.operations.commands:drain",
    "rebalance": "fairlead.cli.operations.commands:rebalance",
    "disconnect": "fairlead.cli.operations.commands:disconnect",
    "audit": "fairlead.cli.access.audit:audit",
    "approvals": "fairlead.cli.access.approvals:approvals",
    "auth": "fairlead.cli.access.auth:auth",
    "tokens": "fairlead.cli.access.tokens:tokens",
    "context": "fairlead.cli.access.context:context",
    "login": "fairlead.cli.access.login:login",
    "logout": "fairlead.cli.access.login:logout",
    "enrolment-tokens": "fairlead.cli.access.enrolment_tokens:enrolment_tokens",
    "keys": "fairlead.cli.access.keys:keys",
    "completion": "fairlead.cli.completion:completion",
    "mock-gateway": "fairlead.cli.commands.mock_gateway:mock_gateway",
}
"""The commands, and where each is defined."""


class _Root(LazyGroup):
    """Ends the process with the documented exit code for each error."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FairleadError as e:
            report_error(e)
            ctx.exit(exit_code(e))
        except KeyboardInterrupt:
            ctx.exit(exit_codes.INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output has gone (`… | head`), so Python must not flush anything to it at exit.
            _discard_stdout()
            ctx.exit(exit_codes.BROKEN_PIPE)
        except OSError as e:
            # Errors of files and connections are translated where they occur, so this one concerns our own output.
            click.echo(f"fairlead: cannot write to {plain(str(e.filename or 'stdout'))}: {e.strerror or e}", err=True)
            click.echo("  → check where the output goes: is that disk full?", err=True)
            _discard_stdout()
            ctx.exit(exit_codes.FAILED)
        except ModuleNotFoundError as e:
            if (e.name or "").partition(".")[0] == "fairlead":
                raise
            click.echo(f"fairlead: this command needs the package {e.name}, which is not installed", err=True)
            click.echo("  → pip install 'fairlead[gateway,cli]'", err=True)
            ctx.exit(exit_codes.FAILED)


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=_Root,
    places=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="To start: `fairlead demo` runs a whole fleet on this machine; then, in another terminal, `fairlead agents "
    "ls` and `fairlead exec agent-1 -- uname -a`.\n\n"
    "Exit codes: 0 success; 1 failure; 2 invalid usage or settings; 3 unavailable (the agent is offline, the gateway "
    "or its Redis unreachable); 4 deadline exceeded; 130 interrupted. `exec`, `results` and `shell` exit with the "
    "code of the remote program, or with 128 + n when signal n ended it.",
)
@click.version_option(__version__, message="%(version)s")
def cli() -> None:
    """Run commands on a fleet of agents, through gateways that hold one link to each agent."""


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


def main() -> NoReturn:
    try:
        cli(prog_name="fairlead")
    finally:
        # Otherwise the interpreter would look for cycles in everything that was imported, although the process ends
        # now.
        gc.freeze()
    raise SystemExit(0)  # never reached, as click exits; it tells the type checker
