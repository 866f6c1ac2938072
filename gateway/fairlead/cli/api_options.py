"""The options of every command that talks to the platform API, and the one place where the API is called.

The development token is used only for an API on this machine, so that it is never sent to a real gateway by mistake;
otherwise the user is told what to set. `call_api` bridges click, which is synchronous, and the client, which is not:
each command runs one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from fairlead.cli.contexts.selected import (
    apply_context,
    context_option,
    selected_context,
    selected_tenant,
    tenant_option,
)

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.client.signer import Signer

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

APPROVAL = "fairlead.approval"
"""Where the context of a command keeps the id of an approval."""
DEFAULT_API = "http://127.0.0.1:8081"


def api_options(command: F) -> F:
    """Add --api and --token, which `call_api` takes, --context, which goes behind them, and --tenant."""
    api = click.option(
        "--api",
        envvar="FAIRLEAD_API",
        default=DEFAULT_API,
        show_default=True,
        show_envvar=True,
        metavar="URL[,URL]",
        callback=apply_context,
        help="URL of the platform API. With several nodes, the next is asked when one is unreachable.",
    )
    token = click.option(
        "--token",
        envvar="FAIRLEAD_TOKEN",
        show_envvar=True,
        metavar="TOKEN",
        help="Platform token. Prefer the environment variable: flags are visible in process lists. For an API on this "
        "machine it defaults to the development token, and with a context to that of `fairlead login`.",
    )
    return context_option(api(token(tenant_option(command))))


def call_api(api: str, token: str | None, work: Callable[[Client], Awaitable[T]], signer: Signer | None = None) -> T:
    """Run `work` with a client of the API, whose commands `signer` signs, and return its result. Raises what `work`
    raises."""
    import asyncio

    async def main() -> T:
        async with await connect(api, token, signer) as client:
            return await work(client)

    return asyncio.run(main())


async def connect(api: str, token: str | None, signer: Signer | None = None) -> Client:
    """A client of the API at `api`. Raises InvalidRequest for a malformed URL, UsageError for a missing token."""
    from fairlead.client import Client, addresses, check_address

    for one in addresses(api):
        check_address(one)  # a malformed URL is reported before a missing token
    selected = selected_context()
    trust = None if selected is None else selected.trust()
    context = click.get_current_context(silent=True)
    approval = "" if context is None else str(context.meta.get(APPROVAL, ""))
    return Client(
        api, token or await default_token(api), ssl=trust, signer=signer, approval=approval, tenant=selected_tenant()
    )


def approval_option(command: F) -> F:
    """Add --approval to a command that starts something; `call_api` reads it."""

    def keep(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value:
            ctx.meta[APPROVAL] = value

    option = click.option(
        "--approval", metavar="ID", expose_value=False, callback=keep,
        help="The approval of a second person, if the method needs one: fairlead approvals ls.",
    )  # fmt: skip
    return option(command)


async def default_token(api: str) -> str:
    """The token of the context that the API comes from, or the development token. Raises UsageError if there is
    neither."""
    selected = selected_context()
    if selected is None or not selected.context.issuer:
        return development_token(api)
    from fairlead.cli.contexts.token_refresh import current_token

    token = await current_token(selected.name, selected.context)
    if token is None:
        raise click.UsageError(f"nobody has logged in for the context {selected.name}: `fairlead login`")
    return token


def development_token(api: str) -> str:
    """The token that a gateway without configuration accepts. Raises UsageError when a URL is not on this machine."""
    from fairlead.client import addresses
    from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN, is_loopback

    for one in addresses(api):
        host = host_of_api(one)
        if host and not is_loopback(host):
            raise click.UsageError(f"no token for the API at {one}: set FAIRLEAD_TOKEN or --token")
    return DEVELOPMENT_PLATFORM_TOKEN


def host_of_api(address: str) -> str:
    """The host in an API's URL. Empty if the URL is malformed, which the caller's next step reports."""
    from fairlead.client import check_address
    from fairlead.errors import InvalidRequest

    try:
        return check_address(address).host
    except InvalidRequest:
        return ""
