"""Where the links of a gateway are, and the token that an agent shows there.

Used by `agent`, `swarm` and `doctor`, which connect as agents do. Decides one thing: the development token is shown
only to a gateway on this machine, so that a real one never sees it and the user is told what to set instead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from fairlead.agent.settings.token_file import TokenFile

F = TypeVar("F", bound=Callable[..., object])

DEFAULT_LINKS = "ws://127.0.0.1:8080"
"""For --help; the agent's configuration has its own, in a room that loads slowly."""


def agent_token_options(flag: str) -> Callable[[F], F]:
    """`flag` and the same with -file, which `chosen_token` takes."""
    token = click.option(
        flag, "agent_token", envvar="FAIRLEAD_AGENT_TOKEN", show_envvar=True, metavar="TOKEN",
        help="Token of agents; better in the environment or a file, since flags are seen by all users of the machine.",
    )  # fmt: skip
    file = click.option(
        f"{flag}-file", "agent_token_file", envvar="FAIRLEAD_AGENT_TOKEN_FILE", show_envvar=True, metavar="FILE",
        type=click.Path(path_type=Path), help="File that holds it.",
    )  # fmt: skip
    return lambda command: token(file(command))


def chosen_token(url: str, token: str | None, file: Path | None, flag: str) -> str:
    """What `agent_token_options(flag)` gave, read now. A flag wins over the environment."""
    if token and file:
        source = click.get_current_context().get_parameter_source
        flags = [source(name) is ParameterSource.COMMANDLINE for name in ("agent_token", "agent_token_file")]
        if flags[0] == flags[1]:
            names = f"{flag} and {flag}-file" if flags[0] else "FAIRLEAD_AGENT_TOKEN and FAIRLEAD_AGENT_TOKEN_FILE"
            raise click.UsageError(f"{names}: only one of them can hold")
        token, file = (token, None) if flags[0] else (None, file)
    found = agent_token(url, token, file, f"{flag}-file")
    return found if isinstance(found, str) else found()


def agent_token(url: str, token: str | None, file: Path | None, flag: str = "--token-file") -> str | TokenFile:
    """The token for the gateway at `url`, or the file that is read for it at each attempt. Raises ConfigError."""
    from fairlead.agent.settings.token_file import TokenFile
    from fairlead.errors import ConfigError
    from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, is_loopback

    if file is not None:
        return TokenFile(file)
    if token:
        return token
    host = host_of(url)
    if host and not is_loopback(host):
        raise ConfigError(f"no token for the gateway at {url}: set {flag} or FAIRLEAD_AGENT_TOKEN")
    return DEVELOPMENT_AGENT_TOKEN


def host_of(url: str) -> str:
    """Empty when `url` is not a valid URL: whoever connects says so."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def endpoint(url: str) -> str:
    """`url` with the path of links, unless it has one."""
    parts = urlsplit(url)
    return parts._replace(path=parts.path if parts.path not in ("", "/") else "/v1/link").geturl()
