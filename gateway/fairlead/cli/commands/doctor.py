"""`fairlead doctor`: every step between here and an agent's link, tried one after the other.

Called by `main`. It tells what works, what does not, and what to do next; exit code 0 only when all of it works. The
steps themselves are the matter of `api_road` and `link_road`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli import exit_codes
from fairlead.cli.api_options import api_options, development_token, host_of_api
from fairlead.cli.click_extensions import NumberRange
from fairlead.cli.link_options import DEFAULT_LINKS, agent_token_options, chosen_token
from fairlead.cli.output.view import as_json, report_option

if TYPE_CHECKING:
    from fairlead.cli.doctor.endpoint_checks import CheckResult


@click.command(short_help="Try the road to the gateway, step by step.")
@api_options
@click.option(
    "--links",
    envvar="FAIRLEAD_AGENT_URL",
    show_envvar=True,
    metavar="URL",
    help=f"Address that agents connect to; {DEFAULT_LINKS} when the API is on this machine.",
)
@click.option("--no-links", is_flag=True, help="Look at the API alone.")
@agent_token_options("--agent-token")
@click.option("--admin", metavar="URL", help="Address of a node's probes: its /readyz is asked too.")
@click.option(
    "--idle",
    type=NumberRange(0, 3600),
    default=20,
    show_default=True,
    metavar="SECONDS",
    help="How long a link is kept silent, to find what hangs up on silence; 0 leaves it out.",
)
@report_option
@click.pass_context
def doctor(
    ctx: click.Context,
    api: str,
    token: str | None,
    links: str | None,
    no_links: bool,
    agent_token: str | None,
    agent_token_file: Path | None,
    admin: str | None,
    idle: float,
    output: str,
) -> None:
    """Try the road from here to the gateway, and the one that agents take, step by step.

    Run it where an agent runs to see the road with its eyes. For the time of --idle an agent called fairlead-doctor
    is in the fleet. Exits with 0 only when every step is fine.
    """
    import asyncio

    platform = token or development_token(api)
    if no_links:
        links = None
    elif links is None:
        links = _links_beside(api)
    agents = chosen_token(links, agent_token, agent_token_file, "--agent-token") if links is not None else ""
    checks = asyncio.run(_look(api, platform, links, agents, admin, idle, output == "table"))
    fine = all(check.ok for check in checks)
    if output == "json":
        import msgspec

        click.echo(as_json({"ok": fine, "checks": msgspec.to_builtins(checks)}))
    else:
        bad = sum(check.ok is False for check in checks)
        click.echo("all is fine" if fine else f"{bad} of {len(checks)} steps failed", err=True)
    ctx.exit(exit_codes.OK if fine else exit_codes.FAILED)


async def _look(
    api: str, token: str, links: str | None, agent_token: str, admin: str | None, idle: float, shown: bool
) -> list[CheckResult]:
    from fairlead.cli.doctor.api_checks import ApiChecks, ProbeChecks
    from fairlead.cli.doctor.endpoint_checks import walk
    from fairlead.cli.doctor.link_checks import LinkChecks
    from fairlead.client import addresses

    roads = [(one, ApiChecks(one, token).steps) for one in addresses(api)]
    if admin:
        roads.append((admin, ProbeChecks(admin).steps))
    if links is not None:
        roads.append((links, LinkChecks(links, agent_token, idle).steps))
    found: list[CheckResult] = []
    for target, steps in roads:
        if shown:
            click.echo(f"{target}")
        async for check in walk(target, steps):
            found.append(check)
            if shown:
                _show(check)
    return found


def _show(check: CheckResult) -> None:
    from fairlead.cli.output.view import coloured
    from fairlead.text import plain

    fancy = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    good, bad, none, arrow = ("✓", "✗", "-", "→") if fancy else ("ok", "FAILED", "-", "->")
    sign, colour = (good, "green") if check.ok else (none, "yellow") if check.ok is None else (bad, "red")
    sign = click.style(sign, fg=colour) if coloured() else sign
    click.echo(f"  {sign} {check.name.ljust(8)} {plain(check.told)}")
    if check.advice:
        click.echo(f"      {arrow} {plain(check.advice)}")
    sys.stdout.flush()


def _links_beside(api: str) -> str:
    """Where links go to when nobody says so. Raises UsageError when that cannot be guessed."""
    from fairlead.client import addresses
    from fairlead.settings import is_loopback

    host = host_of_api(addresses(api)[0])
    if not host or is_loopback(host):  # no URL at all: the first step says so
        return DEFAULT_LINKS
    raise click.UsageError("name the address that agents connect to: --links wss://HOST (or --no-links)")
