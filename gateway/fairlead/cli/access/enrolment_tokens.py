"""`fairlead enrolment-tokens`: creates the tokens with which new agents enrol, lists them, and revokes them.

The text of a new token is the only thing on stdout, so that it can be piped to where it belongs; it is never shown
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group, parse_token_lifetime
from fairlead.cli.output.formats import View, output_option, render
from fairlead.cli.output.table import format_table

if TYPE_CHECKING:
    from fairlead.client import Client


def _parse_labels(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [label.partition("=") for label in given]
    for (key, sign, _), label in zip(pairs, given, strict=True):
        if not (key and sign):
            raise click.BadParameter(f"{label!r}: expected KEY=VALUE", ctx, param)
    return {key: value for key, _, value in pairs}


def _parse_rate(ctx: click.Context, param: click.Parameter, given: str | None) -> int:
    """The enrolments in a minute; 0 if the option is not given."""
    if given is None:
        return 0
    count, slash, unit = given.partition("/")
    if not (slash and count.isascii() and count.isdigit() and 0 < int(count) <= 1_000 and unit in ("s", "m")):
        raise click.BadParameter(f"{given!r}: expected such as 10/m or 2/s, 1000 at most", ctx, param)
    return int(count) * (60 if unit == "s" else 1)


@click.group("enrolment-tokens", cls=Group)
def enrolment_tokens() -> None:
    """Create, list and revoke the tokens with which new agents enrol."""


@enrolment_tokens.command("create", short_help="Create an enrolment token.")
@api_options
@click.option(
    "--uses", type=click.IntRange(1, 100_000), default=1, show_default=True, metavar="N",
    help="How many agents it enrols.",
)  # fmt: skip
@click.option(
    "--expires", "lifetime", callback=parse_token_lifetime, default="24h", show_default=True, metavar="LIFETIME",
    help="When the token expires: 30m, 12h or 90d; 366d at most.",
)  # fmt: skip
@click.option(
    "-l", "--label", "labels", multiple=True, callback=_parse_labels, metavar="KEY=VALUE",
    help="A label of the agents that it enrols; may be repeated, and takes an administrator.",
)  # fmt: skip
@click.option(
    "--rate",
    callback=_parse_rate,
    metavar="N/m",
    help="How many agents it enrols in a minute, or with N/s in a second.",
)
@click.option("--approval", is_flag=True, help="Let each agent wait until `fairlead agents approve`.")
@click.argument("agents", metavar="PATTERN")
def create(
    api: str,
    token: str | None,
    uses: int,
    lifetime: float,
    labels: dict[str, str],
    rate: int,
    approval: bool,
    agents: str,
) -> None:
    """Create an enrolment token: fairlead enrolment-tokens create 'web-*' --uses 20 -l env=prod

    PATTERN says which ids may enrol with it: `?` stands for one character, `*` for any number of them. Prints the
    token, which is not shown again.
    """
    made = call_api(
        api, token, lambda client: client.enrolment_tokens.create(agents, uses, lifetime, labels, rate, approval)
    )
    agents_of_it = "one agent" if made.uses == 1 else f"{made.uses} agents"
    click.echo(
        f"created enrolment token {made.id} for {agents_of_it} {made.agents}; it expires at {made.expires} and is "
        "not shown again",
        err=True,
    )
    click.echo(made.token)


@enrolment_tokens.command("ls", short_help="List enrolment tokens.")
@api_options
@output_option
def ls(api: str, token: str | None, output: str) -> None:
    """List all enrolment tokens, without their secrets."""
    import msgspec

    found = call_api(api, token, lambda client: client.enrolment_tokens.list())
    head = ("ID", "AGENTS", "USED", "EXPIRES")
    rows = [
        (one.id, one.agents, f"{one.used} of {one.uses}", "expired" if one.expired else one.expires) for one in found
    ]
    wide = [
        (
            *row,
            f"{one.rate}/m" if one.rate else "-",
            "by hand" if one.approval else "-",
            ",".join(f"{key}={value}" for key, value in one.labels.items()) or "-",
            one.created,
            one.created_by,
        )
        for row, one in zip(rows, found, strict=True)
    ]
    view = View(
        [one.id for one in found],
        {"tokens": msgspec.to_builtins(found)},
        format_table(head, rows),
        format_table((*head, "RATE", "APPROVAL", "LABELS", "CREATED", "BY"), wide),
    )
    click.echo(render(view, output), nl=False)


@enrolment_tokens.command("revoke", short_help="Revoke enrolment tokens.")
@api_options
@click.option("--agents", is_flag=True, help="Revoke the keys of all agents that were enrolled with them, too.")
@click.argument("wanted", metavar="ID...", nargs=-1, required=True)
def revoke(api: str, token: str | None, agents: bool, wanted: tuple[str, ...]) -> None:
    """Revoke enrolment tokens: fairlead enrolment-tokens revoke 1f6b29d4c0aa

    A revoked token enrols nobody any more. Agents that it has enrolled stay; with --agents their keys are revoked too,
    which closes their links within 5 seconds.
    """

    async def work(client: Client) -> None:
        for id in dict.fromkeys(wanted):
            await client.enrolment_tokens.revoke(id, agents)
            click.echo(f"revoked {id}")

    call_api(api, token, work)
