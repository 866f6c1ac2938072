"""`fairlead doctor`: tries each step of the connection to the API, of the one that agents make, and of a node's Redis.

It prints what works, what does not, and what to do next. The package `doctor` has the checks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import DEFAULT_API, api_options, default_token, host_of_api
from fairlead.cli.click_extensions import NumberRange
from fairlead.cli.link_options import DEFAULT_LINKS, agent_token_options, chosen_token
from fairlead.cli.output.formats import report_option
from fairlead.cli.redis.options import names_redis, redis_options, redis_url

if TYPE_CHECKING:
    from fairlead.cli.doctor.checks import Check

FORGET_TIMEOUT = 3.0
"""Seconds for the removal of the agent of the check for silence."""


@click.command(short_help="Check the connection to the gateway, step by step.")
@api_options
@click.option(
    "--links",
    envvar="FAIRLEAD_AGENT_URL",
    show_envvar=True,
    metavar="URL",
    help=f"URL that agents connect to. [default: {DEFAULT_LINKS} if the API is at {DEFAULT_API}]",
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
@redis_options
@report_option
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    api: str,
    token: str | None,
    links: str | None,
    no_links: bool,
    agent_token: str | None,
    agent_token_file: Path | None,
    admin: str | None,
    idle: float,
    output: str,
    config: Path | None,
    **redis_flags: str | None,
) -> None:
    """Check the connection from here to the gateway, the one that agents make, and a node's Redis, step by step.

    Run it on an agent's machine to check that machine's connection. The --idle check connects an agent called
    fairlead-doctor to the fleet, and removes it if the API's token may delete it. With a node's settings (--config,
    --redis, FAIRLEAD_REDIS …) it also checks their Redis, as `fairlead redis check` does. Exits with 0 only if every
    check succeeds.
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
    redis = redis_url(config, redis_flags) if names_redis(config, redis_flags) else ""

    async def run_checks() -> int:
        code = await _report(servers, redis, output)
        if not no_links and idle:
            await _forget_agent(api, platform_token)
        return code

    ctx.exit(asyncio.run(run_checks()))


async def _forget_agent(api: str, token: str) -> None:
    """Remove the agent of the check for silence, so that no list and no run has it. It is not always possible: the
    caller may have no right to delete it, or another doctor may use it at this moment."""
    import asyncio
    import random

    from fairlead.cli.api_options import connect
    from fairlead.cli.doctor.idle_check import DOCTOR
    from fairlead.errors import AgentOnline, FairleadError

    try:
        async with asyncio.timeout(FORGET_TIMEOUT), await connect(api, token) as client:
            while True:
                try:
                    await client.delete(DOCTOR)
                    return
                except AgentOnline:  # the gateway has not stored yet that the link was closed
                    await asyncio.sleep(random.uniform(0.05, 0.2))
    except (FairleadError, TimeoutError, click.UsageError):
        return


async def _report(servers: list[tuple[str, list[Check]]], redis: str, output: str) -> int:
    """Run the checks, and those of the Redis at the URL `redis` if there is one. Returns the exit code."""
    from fairlead.cli.doctor.report import report_checks

    if not redis:
        return await report_checks(servers, output)
    from fairlead.cli.redis.server_checks import checks_of_redis

    async with checks_of_redis(redis, "node") as checks:
        return await report_checks([*servers, checks], output)


def _links_beside(api: str) -> str:
    """The URL of the links if --links is missing. Raises UsageError if it cannot be guessed."""
    from urllib.parse import urlsplit

    from fairlead.client import addresses
    from fairlead.settings import is_loopback

    first = addresses(api)[0]
    host = host_of_api(first)
    if not host:  # a malformed URL is reported by its first check
        return DEFAULT_LINKS
    if not is_loopback(host):
        raise click.UsageError("no URL of the agents' links: set --links wss://HOST, or skip them with --no-links")
    if urlsplit(first).port != urlsplit(DEFAULT_API).port:  # what listens at 8080 may be another gateway
        raise click.UsageError(
            f"no URL of the agents' links beside the API at {first}: set --links ws://HOST:PORT (`make run` prints it "
            "as links), or skip them with --no-links"
        )
    return DEFAULT_LINKS
