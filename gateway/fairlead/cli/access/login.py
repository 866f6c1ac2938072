"""`fairlead login` and `fairlead logout`: get tokens from the issuer of a context, and forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.contexts.selected import context_option, find_context
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.cli.contexts.device_login import DeviceCode
    from fairlead.cli.contexts.selected import SelectedContext


@click.command(short_help="Log in at the issuer of a context.")
@context_option
@click.pass_context
def login(ctx: click.Context) -> None:
    """Log in at the issuer of the context: prints an address and a code, and waits until you have entered the code.

    The browser may be on any machine. The tokens are kept in a file that only you can read, and refreshed before they
    expire.
    """
    import asyncio

    from fairlead.cli.contexts import device_login
    from fairlead.cli.contexts.credentials import write_credentials

    selected = _selected(ctx)
    if not selected.context.issuer:
        raise click.UsageError(
            f"the context {selected.name} names no issuer: `fairlead context add {selected.name} --api … --issuer URL "
            "--client-id ID`"
        )
    credentials = asyncio.run(device_login.login(selected.context, _show))
    write_credentials(selected.name, credentials)
    click.echo(f"logged in at {plain(selected.context.issuer)} for the context {selected.name}", err=True)


@click.command(short_help="Forget the tokens of a context.")
@context_option
@click.pass_context
def logout(ctx: click.Context) -> None:
    """Remove the tokens of the context, and revoke them at the issuer if it offers that.

    The last token stays valid until it expires: let the issuer make them for minutes.
    """
    import asyncio

    from fairlead.cli.contexts import device_login
    from fairlead.cli.contexts.credentials import credentials_path, read_credentials
    from fairlead.errors import FairleadError

    selected = _selected(ctx)
    found = read_credentials(selected.name)
    credentials_path(selected.name).unlink(missing_ok=True)
    if found is None:
        click.echo(f"nobody was logged in for the context {selected.name}", err=True)
        return
    if found.refresh_token and found.belongs_to(selected.context):
        try:
            asyncio.run(device_login.revoke(selected.context, found.refresh_token))
        except FairleadError as e:
            click.echo(f"the refresh token could not be revoked: {plain(e.message)}", err=True)
    click.echo(f"logged out of the context {selected.name}", err=True)


def _selected(ctx: click.Context) -> SelectedContext:
    selected = find_context(ctx)
    if selected is None:
        raise click.UsageError(
            "there is no current context: choose one with `fairlead context use NAME` or --context NAME "
            "(`fairlead context add` makes one)"
        )
    return selected


def _show(code: DeviceCode) -> None:
    click.echo(f"open {plain(code.verification_uri)} and enter the code {plain(code.user_code)}", err=True)
    if code.verification_uri_complete:
        click.echo(f"or open {plain(code.verification_uri_complete)}", err=True)
