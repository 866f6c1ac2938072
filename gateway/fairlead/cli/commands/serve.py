"""`fairlead serve`: runs a gateway node, or several with --workers, until it is told to stop.

There is one flag for each setting, made from the table of settings, so a new setting is a flag by itself. The values
are passed to `settings.load` as text, which reports all errors of flags, environment and file at once. The package
`serve` runs one node, the package `workers` several.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import click

from fairlead.settings import TOKENS, Settings, load
from fairlead.settings.table import SETTINGS


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    for name, rule in reversed(list(SETTINGS.items())):  # click lists the last one first
        if name in TOKENS:
            continue  # flags are visible to every user in process lists: there is --…-token-file instead
        known = Settings.__dataclass_fields__.get(name)
        has_default = known is not None and name != "node" and known.default not in ("", None)
        default = f" [default: {known.default}]" if known is not None and has_default else ""
        flag = f"--{name.replace('_', '-')}"
        flag_help = f"{rule.help}.{default}"
        if known is not None and isinstance(known.default, bool):  # may be given without a value
            option = click.option(flag, name, metavar="VALUE", is_flag=False, flag_value="true", help=flag_help)
        else:
            option = click.option(flag, name, metavar="VALUE", help=flag_help)
        command = option(command)
    return command


@click.command(
    short_help="Run a gateway node.",
    epilog="Every setting can also be given in a TOML file (node = …) or in the environment (FAIRLEAD_NODE). A flag "
    "overrides the environment, the environment overrides the file. The tokens themselves are never flags: set "
    "FAIRLEAD_AGENT_TOKEN and FAIRLEAD_PLATFORM_TOKEN.",
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
    """Run one gateway node, or several with --workers, until SIGTERM or Ctrl-C. See docs/operations.md."""
    settings = load(os.environ, config, flags)
    gc.disable()  # imports create almost no garbage, and collecting it takes a tenth of their time
    from fairlead.cli.serve.node_server import prepare, run

    gc.enable()
    settings = prepare(settings)
    if settings.workers > 1:
        from fairlead.cli.workers.supervisor import Supervisor

        ctx.exit(Supervisor(settings).run())
    ctx.exit(run(settings))
