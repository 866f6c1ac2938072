"""`fairlead doctor`: tries each step of the connection to the API, and of the one that agents make.

It prints what works, what does not, and what to do next. The package `doctor` has the checks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli import exit_codes
from fairlead.cli.api_options import api_options, default_token, host_of_api
from fairlead.cli.click_extensions import NumberRange
from fairlead.cli.link_options import DEFAULT_LINKS, agent_token_options, chosen_token
from fairlead.cli.output.formats import as_json, has_colours, report_option
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.cli.doctor.checks import Check, CheckResult


@click.command(short_help="Check the connection to the gateway, step by step.")
@api_options
@click.option(
    "--links",
    envvar="FAIRLEAD_AGENT_URL",
    show_envvar=True,
    metavar="URL",
    help=f"URL that agents connect to. [default: {DEFAULT_LINKS} if the API is on this machine]",
)
@click.option("--no-links", is_flag=True, help="Check only the API.")
@agent_token_options("--agent-token")
@click.option("--admin", metavar="URL", help="URL of a node's admin port, to check its /readyz too.")
@click.option(
    "--idle",
    type=NumberRange(0, 3600),
    default=20,
    show_default=True,
    metavar="SECONDS",
    help="How long to keep a link silent, to find proxies that close silent links; 0 skips this check.",
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
    """Check the connection from here to the gateway, and the one that agents make, step by step.

    Run it on an agent's machine to check that machine's connection. The --idle check connects an agent called
    fairlead-doctor to the fleet. Exits with 0 only if every check succeeds.
    """
    import asyncio

    from fairlead.cli.doctor.api_checks import ApiChecks, ProbeChecks
    from fairlead.cli.doctor.link_checks import LinkChecks
    from fairlead.client import addresses

    platform_token = token or asyncio.run(default_token(api))
    servers = [(url, ApiChecks(url, platform_token).checks) for url in addresses(api)]
    if admin:
        servers.append((admin, ProbeChecks(admin).checks))
    if not no_links:
        url = links if links is not None else _links_beside(api)
        link_token = chosen_token(url, agent_token, agent_token_file, "--agent-token")
        servers.append((url, LinkChecks(url, link_token, idle).checks))
    results = asyncio.run(_run(servers, printing=output == "table"))
    succeeded = all(result.ok for result in results)
    if output == "json":
        import msgspec

        click.echo(as_json({"ok": succeeded, "checks": msgspec.to_builtins(results)}))
    else:
        failed = sum(result.ok is False for result in results)
        click.echo("all checks succeeded" if succeeded else f"{failed} of {len(results)} checks failed", err=True)
    ctx.exit(exit_codes.OK if succeeded else exit_codes.FAILED)


async def _run(servers: list[tuple[str, list[Check]]], printing: bool) -> list[CheckResult]:
    from fairlead.cli.doctor.checks import run_checks

    results: list[CheckResult] = []
    for target, checks in servers:
        if printing:
            click.echo(f"{target}")
        async for result in run_checks(target, checks):
            results.append(result)
            if printing:
                _print(result)
    return results


def _print(result: CheckResult) -> None:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    good, bad, skipped, arrow = ("✓", "✗", "-", "→") if unicode else ("ok", "FAILED", "-", "->")
    sign, colour = (good, "green") if result.ok else (skipped, "yellow") if result.ok is None else (bad, "red")
    sign = click.style(sign, fg=colour) if has_colours() else sign
    click.echo(f"  {sign} {result.name.ljust(8)} {plain(result.message)}")
    if result.advice:
        click.echo(f"      {arrow} {plain(result.advice)}")
    sys.stdout.flush()


def _links_beside(api: str) -> str:
    """The URL of the links if --links is missing. Raises UsageError if it cannot be guessed."""
    from fairlead.client import addresses
    from fairlead.settings import is_loopback

    host = host_of_api(addresses(api)[0])
    if not host or is_loopback(host):  # a malformed URL is reported by its first check
        return DEFAULT_LINKS
    raise click.UsageError("no URL of the agents' links: set --links wss://HOST, or skip them with --no-links")
