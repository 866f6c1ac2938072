"""`fairlead tokens`: creates service tokens, lists them, and revokes them.

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
    from fairlead.client import Client, TokenInfo


@click.group(cls=Group)
def tokens() -> None:
    """Create, list and revoke service tokens."""


@tokens.command("create", short_help="Create a service token.")
@api_options
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="Limit the token to this role of its name; may be repeated."
)
@click.option(
    "--expires", "lifetime", callback=parse_token_lifetime, default="90d", show_default=True, metavar="LIFETIME",
    help="When the token expires: 30m, 12h or 90d; 366d at most.",
)  # fmt: skip
@click.argument("name")
def create(api: str, token: str | None, roles: tuple[str, ...], lifetime: float, name: str) -> None:
    """Create a service token: fairlead tokens create ci --role deploy

    Prints the token, which is not shown again. Its name decides which roles it has: those that the gateway's file of
    roles binds to the name. A second token of the same name can replace the first without a gap.
    """
    made = call_api(api, token, lambda client: client.tokens.create(name, roles or None, lifetime))
    click.echo(
        f"created service token {made.name} with the id {made.id}; it expires at {made.expires} and is not shown again",
        err=True,
    )
    click.echo(made.token)


@tokens.command("ls", short_help="List service tokens.")
@api_options
@output_option
def ls(api: str, token: str | None, output: str) -> None:
    """List all service tokens, without their secrets."""
    import msgspec

    found = call_api(api, token, lambda client: client.tokens.list())
    head = ("ID", "NAME", "ROLES", "EXPIRES", "LAST USED")
    rows = [
        (
            one.id, one.name, "all" if one.roles is None else ",".join(one.roles),
            "expired" if one.expired else one.expires, one.used or "never",
        )
        for one in found
    ]  # fmt: skip
    wide = [(*row, one.created, one.created_by) for row, one in zip(rows, found, strict=True)]
    view = View(
        [one.id for one in found],
        {"tokens": msgspec.to_builtins(found)},
        format_table(head, rows),
        format_table((*head, "CREATED", "BY"), wide),
    )
    click.echo(render(view, output), nl=False)


@tokens.command("revoke", short_help="Revoke service tokens.")
@api_options
@click.argument("wanted", metavar="ID|NAME...", nargs=-1, required=True)
def revoke(api: str, token: str | None, wanted: tuple[str, ...]) -> None:
    """Revoke service tokens: fairlead tokens revoke 1f6b29d4c0aa

    A name stands for its token if there is only one. Every node refuses a revoked token within 5 seconds, and ends
    its streams.
    """

    async def work(client: Client) -> None:
        known = await client.tokens.list()
        for one in [_chosen(one, known) for one in dict.fromkeys(wanted)]:
            await client.tokens.revoke(one.id)
            click.echo(f"revoked {one.name} ({one.id})")

    call_api(api, token, work)


def _chosen(wanted: str, known: list[TokenInfo]) -> TokenInfo:
    found = [one for one in known if wanted == one.id] or [one for one in known if wanted == one.name]
    if not found:
        raise click.UsageError(f"there is no service token {wanted!r}: `fairlead tokens ls` lists all")
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise click.UsageError(f"{len(found)} service tokens have the name {wanted!r}: name one by its id: {ids}")
    return found[0]
