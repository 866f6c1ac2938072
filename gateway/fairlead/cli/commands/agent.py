"""`fairlead agent run` runs the built-in agent; `fairlead agent check` checks its configuration.

Needs the base install only. The agent's own package reads and checks the configuration; this module creates the agent
from it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from fairlead.cli.click_extensions import Group
from fairlead.cli.link_options import DEFAULT_LINKS, agent_token, host_of

if TYPE_CHECKING:
    from fairlead.agent import Agent
    from fairlead.agent.identity import AgentIdentity
    from fairlead.agent.settings import AgentSettings
    from fairlead.agent.verification.trusted_keys import TrustedKeys

F = TypeVar("F", bound=Callable[..., object])
FILE = click.Path(path_type=Path)


@click.group(cls=Group)
def agent() -> None:
    """Run an agent on this machine, or check its configuration."""


def _options(command: F) -> F:
    """Add the keys that have a flag, and --config for the file with the others."""
    for decorate in reversed(
        [
            click.option(
                "--config",
                type=FILE,
                metavar="FILE",
                help="Configuration file (TOML). [default: /etc/fairlead/agent.toml]",
            ),
            click.option("--url", metavar="URL", help=f"URL of the gateway's links. [default: {DEFAULT_LINKS}]"),
            click.option("--id", metavar="ID", help="Id of the agent. [default: the host name]"),
            click.option("--token", metavar="TOKEN", help="Agent token. Prefer FAIRLEAD_AGENT_TOKEN or a file."),
            click.option(
                "--token-file", type=FILE, metavar="FILE", help="File with the agent token, read at each attempt."
            ),
            click.option(
                "--journal",
                type=FILE,
                metavar="FOLDER",
                help="Folder, for this agent only, in which accepted commands and unsent results survive a crash.",
            ),
            click.option(
                "--trusted-keys",
                type=FILE,
                metavar="FILE",
                help="Public keys; only commands that one of them has signed are run. Needs --journal.",
            ),
            click.option(
                "--fact", "facts", multiple=True, metavar="KEY=VALUE", help="Fact about the agent; repeatable."
            ),
            click.option(
                "--ca-file", type=FILE, metavar="FILE", help="Certificate authorities to trust instead of the system's."
            ),
            click.option(
                "--tls-cert", type=FILE, metavar="FILE", help="Client certificate, read again when it changes."
            ),
            click.option("--tls-key", type=FILE, metavar="FILE", help="Key of the client certificate."),
            click.option(
                "--proxy",
                metavar="URL",
                help="http://… or https://…, or `direct` for no proxy. [default: from HTTPS_PROXY]",
            ),
            click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. [default: info]"),
            click.option("--log-format", metavar="FORMAT", help="text or json. [default: text]"),
        ]
    ):
        command = decorate(command)
    return command


def _identity_options(command: F) -> F:
    """Add the keys of an agent that enrols."""
    for decorate in (
        click.option(
            "--identity",
            type=FILE,
            metavar="FOLDER",
            help="Folder, for this agent only, with the key that it makes and its credential.",
        ),
        click.option(
            "--enrolment-token",
            metavar="TOKEN",
            help="Token with which the agent enrols once. Prefer FAIRLEAD_AGENT_ENROLMENT_TOKEN or a file.",
        ),
        click.option("--enrolment-token-file", type=FILE, metavar="FILE", help="File with the enrolment token."),
    ):
        command = decorate(command)
    return command


@agent.command("run", short_help="Run the built-in agent.")
@_options
@_identity_options
def run(config: Path | None, **flags: object) -> None:
    """Run the built-in agent, which runs programs and copies files on this machine for the platform.

    Each flag is also a key of the configuration file and an environment variable FAIRLEAD_AGENT_…. A flag overrides the
    environment, the environment overrides the file. The file says what the platform may do here: see docs/agent.md.
    """
    from fairlead.agent.host.logs import set_up
    from fairlead.agent.host.process_secrets import hide_secrets

    loaded = _load(config, flags)
    set_up(loaded.log_level, loaded.log_format)
    made = _agent(loaded)
    hide_secrets(_secrets(loaded))
    for name in ("FAIRLEAD_AGENT_TOKEN", "FAIRLEAD_AGENT_ENROLMENT_TOKEN"):
        os.environ.pop(name, None)
    made.run()


def _secrets(loaded: AgentSettings) -> set[str]:
    """The secrets that were given by flags or in the environment, where every process of this user could read them."""
    from fairlead.agent.settings import variable
    from fairlead.agent.settings.table import DIRECT, SETTINGS

    keys = [key for key, rule in SETTINGS.items() if rule.secret]
    proxies = {value for name, value in os.environ.items() if name.upper().endswith("_PROXY") and "@" in value}
    given = {getattr(loaded, key) for key in keys} | {os.environ.get(variable(key)) for key in keys} | proxies
    return {secret for secret in given if secret and secret != DIRECT}


@agent.command("check", short_help="Check the configuration without connecting.")
@_options
@_identity_options
def check(config: Path | None, **flags: object) -> None:
    """Check the configuration without connecting, and print where each value comes from."""
    from fairlead.agent.settings.table import SETTINGS

    loaded = _load(config, flags)
    _agent(loaded)
    for key in ("url", "id"):
        if key not in loaded.sources:
            click.echo(f"{key} = {getattr(loaded, key)} (default)")
    for key in SETTINGS:
        if key in loaded.sources:
            click.echo(f"{key} = {'…' if SETTINGS[key].secret else _value(loaded, key)} ({loaded.sources[key]})")


def _value(loaded: AgentSettings, key: str) -> object:
    value = loaded.value(key)
    return list(value) if isinstance(value, tuple) else value


def _load(config: Path | None, flags: dict[str, object]) -> AgentSettings:
    from fairlead.agent.settings import load

    facts = flags.pop("facts")
    assert isinstance(facts, tuple)
    for fact in facts:
        if "=" not in fact:
            raise click.BadParameter(f"{fact!r}: expected KEY=VALUE", param_hint="--fact")
    given = dict(fact.partition("=")[::2] for fact in facts) or None
    return load(os.environ, config, flags | {"facts": given})


def _agent(loaded: AgentSettings) -> Agent:
    """The agent with that configuration. Raises ConfigError for a file that cannot be used."""
    from fairlead.agent.builtin import builtin_agent
    from fairlead.agent.settings.proxy import choose_proxy
    from fairlead.settings import is_loopback

    if loaded.url.startswith("ws://") and not is_loopback(host_of(loaded.url)):
        logging.getLogger("fairlead.agent").warning(
            "%s has no TLS: others can read the token and all data on the way; use wss://", loaded.url
        )
    presented = _presented(loaded)
    files = None
    if loaded.ca_file is not None or loaded.tls_cert is not None:
        from fairlead.agent.link.tls_files import TlsFiles

        files = TlsFiles(loaded.tls_cert, loaded.tls_key, loaded.ca_file)
        files()  # reports files that cannot be used before the agent starts
    return builtin_agent(
        loaded.url,
        loaded.id,
        presented,
        facts=loaded.facts,
        ssl=files,
        proxy=choose_proxy(loaded.url, loaded.proxy, os.environ),
        journal=loaded.journal,
        trusted_keys=_trusted_keys(loaded.trusted_keys),
        options=loaded.options,
        private=[path for path in _private(loaded) if path is not None],
    )


def _private(loaded: AgentSettings) -> tuple[Path | None, ...]:
    """The files of the agent's own, besides the folders of its journal and identity."""
    return loaded.token_file, loaded.enrolment_token_file, loaded.trusted_keys, loaded.tls_key, loaded.file


def _presented(loaded: AgentSettings) -> str | Callable[[], str] | AgentIdentity | None:
    """What the agent presents to the gateway: its identity, or a token; None for its client certificate alone. Raises
    ConfigError."""
    if loaded.identity is not None:
        from fairlead.agent.identity import AgentIdentity
        from fairlead.agent.settings.token_file import TokenFile

        file = loaded.enrolment_token_file
        return AgentIdentity(
            loaded.identity, loaded.enrolment_token if file is None else TokenFile(file, "enrolment_token_file")
        )
    if loaded.tls_cert is not None and loaded.token is None and loaded.token_file is None:
        return None
    token = agent_token(loaded.url, loaded.token, loaded.token_file)
    if not isinstance(token, str):
        token()  # reports a file that cannot be read before the agent starts
    return token


def _trusted_keys(path: Path | None) -> TrustedKeys | None:
    if path is None:
        return None
    from fairlead.agent.verification.trusted_keys import load_trusted_keys

    return load_trusted_keys(path)
