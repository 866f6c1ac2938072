"""`fairlead tenants`: lists the tenants of a gateway with what they have of their quotas, from the platform API."""

from __future__ import annotations

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group
from fairlead.cli.output.formats import View, output_option, render
from fairlead.cli.output.table import format_table


@click.group(cls=Group)
def tenants() -> None:
    """List the tenants of the gateway."""


@tenants.command("ls", short_help="List the tenants, with counts and quotas.")
@api_options
@output_option
def ls(api: str, token: str | None, output: str) -> None:
    """List the tenants that the gateway's file of roles declares, with what each has of its quotas.

    `500/2000` means 500 of a quota of 2,000, and `-` that there is no quota. Open commands and runs are counted only
    for tenants with a quota for them.
    """
    import msgspec

    found = call_api(api, token, lambda client: client.tenants())
    rows = [
        (
            one.name, _share(one.agents, one.quotas.agents), _share(one.open_commands, one.quotas.open_commands),
            _share(one.run_concurrency, one.quotas.run_concurrency), _number(one.quotas.command_rate),
            _number(one.quotas.events_bytes),
        )
        for one in found
    ]  # fmt: skip
    head = ("TENANT", "AGENTS", "OPEN COMMANDS", "RUN CONCURRENCY", "COMMANDS/S", "EVENTS BYTES")
    table = format_table(head, rows, range(1, len(head)))
    view = View([one.name for one in found], {"tenants": msgspec.to_builtins(found)}, table, table)
    click.echo(render(view, output), nl=False)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _share(count: int | None, quota: int | None) -> str:
    if count is None:
        return _number(quota)
    return str(count) if quota is None else f"{count}/{quota}"
