"""`fairlead serve`: one flag for each setting, then a node until it is told to stop.

Called by `main`. The flags are made of the table of rules, so a new setting is a flag by itself; their values
go to `settings.load` as text, which tells all faults of flags, environment and file at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from fairlead.settings import TOKENS, Settings, load
from fairlead.settings.table import SETTINGS


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, rule in reversed(list(SETTINGS.items())):  # click lists the last first
        if name in TOKENS:
            continue  # every user of a machine may read its processes' flags: --…-token-file stands in
        known = Settings.__dataclass_fields__.get(name)
        default = f" [default: {known.default}]" if known is not None and name != "node" and known.default != "" else ""
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, metavar="VALUE", help=f"{rule.help}.{default}")(command)
    return command


@click.command(
    short_help="Run a gateway node.",
    epilog="Every setting may also stand in a TOML file (node = …) or in the environment (FAIRLEAD_NODE); a "
    "flag wins over the environment, the environment over the file. The tokens themselves stand only there: "
    "FAIRLEAD_AGENT_TOKEN, FAIRLEAD_PLATFORM_TOKEN.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="FAIRLEAD_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="TOML file with settings.",
)
@_setting_options
@click.pass_context
def serve(ctx: click.Context, /, config: Path | None, **flags: str | None) -> None:
    """Run one gateway node, or several with --workers, until SIGTERM or Ctrl-C. docs/operations.md tells more."""
    settings = load(os.environ, config, flags)
    from fairlead.cli.serve.node_server import prepared, run

    settings = prepared(settings)
    if settings.workers > 1:
        from fairlead.cli.workers.supervisor import Supervisor

        ctx.exit(Supervisor(settings).run())
    ctx.exit(run(settings))
