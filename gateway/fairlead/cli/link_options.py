"""The options of every command that connects as an agent does: the URL of the links and the agent token.

Used by `agent`, `swarm` and `doctor`. The development token is used only for a gateway on this machine, so that it is
never sent to a real one by mistake; otherwise the user is told what to set.
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
"""The default that --help shows. The agent's configuration has its own, in a package that is slow to import."""


def agent_token_options(flag: str) -> Callable[[F], F]:
    """Add `flag` and `flag`-file, which `chosen_token` takes."""
    token = click.option(
        flag, "agent_token", envvar="FAIRLEAD_AGENT_TOKEN", show_envvar=True, metavar="TOKEN",
        help="Agent token. Prefer the environment variable or a file: flags are visible in process lists.",
    )  # fmt: skip
    file = click.option(
        f"{flag}-file", "agent_token_file", envvar="FAIRLEAD_AGENT_TOKEN_FILE", show_envvar=True, metavar="FILE",
        type=click.Path(path_type=Path), help="File with the agent token.",
    )  # fmt: skip
    return lambda command: token(file(command))


def chosen_token(url: str, token: str | None, file: Path | None, flag: str) -> str:
    """The token for the gateway at `url`, from the options of `agent_token_options(flag)`.

    A flag wins over an environment variable. Raises UsageError when both a token and a file are given in the same way,
    ConfigError when there is no token or the file cannot be read.
    """
    if token and file:
        source = click.get_current_context().get_parameter_source
        flags = [source(name) is ParameterSource.COMMANDLINE for name in ("agent_token", "agent_token_file")]
        if flags[0] == flags[1]:
            names = f"{flag} and {flag}-file" if flags[0] else "FAIRLEAD_AGENT_TOKEN and FAIRLEAD_AGENT_TOKEN_FILE"
            raise click.UsageError(f"{names} are both set: set only one of them")
        token, file = (token, None) if flags[0] else (None, file)
    found = agent_token(url, token, file, f"{flag}-file")
    return found if isinstance(found, str) else found()


def agent_token(url: str, token: str | None, file: Path | None, flag: str = "--token-file") -> str | TokenFile:
    """The token for the gateway at `url`, or a reader of the file, called at each attempt. Raises ConfigError."""
    from fairlead.agent.settings.token_file import TokenFile
    from fairlead.errors import ConfigError
    from fairlead.settings import DEVELOPMENT_AGENT_TOKEN, is_loopback

    if file is not None:
        return TokenFile(file)
    if token:
        return token
    host = host_of(url)
    if host and not is_loopback(host):
        raise ConfigError(f"no token for the gateway at {url}: set FAIRLEAD_AGENT_TOKEN or {flag}")
    return DEVELOPMENT_AGENT_TOKEN


def host_of(url: str) -> str:
    """The host in `url`. Empty if the URL is malformed, which the attempt to connect reports."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def endpoint(url: str) -> str:
    """`url` with the path of links, unless it has a path."""
    parts = urlsplit(url)
    return parts._replace(path=parts.path if parts.path not in ("", "/") else "/v1/link").geturl()
