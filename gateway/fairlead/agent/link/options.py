"""How the gateway is reached: its URL, the token, TLS and the proxy. Checked when the agent is created."""

from __future__ import annotations

import ssl as tls
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

from fairlead.agent.identity import AgentIdentity
from fairlead.carrier.proxy_tunnel import parse_proxy
from fairlead.errors import ConfigError

LINK_PATH = "/v1/link"

TlsSource: TypeAlias = Callable[[], "tls.SSLContext | None"]


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """`token` is called before each attempt; it raises ConfigError when there is no token, and an agent that presents
    none, but a client certificate, has "". An agent with an identity of its own has that instead. `ssl` is called
    before each attempt too; None means the system's authorities."""

    url: str
    token: Callable[[], str] | AgentIdentity
    ssl: TlsSource
    proxy: str | None = None

    def __post_init__(self) -> None:
        if self.proxy is not None:
            try:
                parse_proxy(self.proxy)
            except ValueError as e:
                raise ConfigError(str(e)) from e


def link_url(url: str) -> str:
    """`url` with the link's path, unless it has one. Raises ConfigError when it is not a ws:// or wss:// URL."""
    try:
        parts = urlsplit(url)
        legal = parts.scheme in ("ws", "wss") and parts.hostname and parts.port != 0
    except ValueError:
        legal = False
    if not legal:
        raise ConfigError(f"invalid gateway URL {url!r}: expected ws://host[:port] or wss://host[:port]")
    return urlunsplit(parts._replace(path=parts.path if parts.path not in ("", "/") else LINK_PATH))


def connect_options(
    agent: str,
    url: str,
    token: str | Callable[[], str] | AgentIdentity | None,
    ssl: tls.SSLContext | Callable[[], tls.SSLContext] | None,
    proxy: str | None,
) -> ConnectOptions:
    """How `agent` reaches the gateway. An identity learns from it whose it is. Raises ConfigError."""
    links = link_url(url)
    source: TlsSource = (lambda: ssl) if ssl is None or isinstance(ssl, tls.SSLContext) else ssl
    if isinstance(token, AgentIdentity):
        token.attach(agent, links, source, proxy)
    presented = token or ""
    return ConnectOptions(links, (lambda: presented) if isinstance(presented, str) else presented, source, proxy)
