"""The options of every command that talks to the platform API, and the one place where it is talked to.

Used by all of them. Decides one thing: the development token is taken only for an API on this machine, so that a real
gateway never sees it by mistake and the user is told what to set instead. `ask` is the bridge between click, which is
synchronous, and the client, which is not: one command of ours is one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from fairlead.client import Client

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

DEFAULT_API = "http://127.0.0.1:8081"


def api_options(command: F) -> F:
    """--api and --token, which `ask` takes."""
    api = click.option(
        "--api",
        envvar="FAIRLEAD_API",
        default=DEFAULT_API,
        show_default=True,
        show_envvar=True,
        metavar="URL[,URL]",
        help="Address of the platform API. Of several nodes, the next is asked when one cannot be reached.",
    )
    token = click.option(
        "--token",
        envvar="FAIRLEAD_TOKEN",
        show_envvar=True,
        metavar="TOKEN",
        help="Token of the platform; better in the environment, where no list of processes shows it. An API "
        "on this machine is asked with the development token.",
    )
    return api(token(command))


def ask(api: str, token: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """What `work` returns. It may end the command by any error of the house, or by Ctrl-C."""
    import asyncio

    async def main() -> T:
        async with connect(api, token) as client:
            return await work(client)

    return asyncio.run(main())


def connect(api: str, token: str | None) -> Client:
    from fairlead.client import Client, addresses, check_address

    for one in addresses(api):
        check_address(one)  # before a token for it is asked for
    return Client(api, token or development_token(api))


def development_token(api: str) -> str:
    """Raises UsageError when an address of `api` is not on this machine."""
    from fairlead.client import addresses
    from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN, is_loopback

    for one in addresses(api):
        host = host_of_api(one)
        if host and not is_loopback(host):
            raise click.UsageError(f"no token for the API at {one}: set FAIRLEAD_TOKEN, or --token")
    return DEVELOPMENT_PLATFORM_TOKEN


def host_of_api(address: str) -> str:
    """Empty when `address` is no API's: whoever asks it says what is wrong."""
    from fairlead.client import check_address
    from fairlead.errors import InvalidRequest

    try:
        return check_address(address).host
    except InvalidRequest:
        return ""
