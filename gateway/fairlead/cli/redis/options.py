"""Which Redis is meant, said with the options of a node.

Used by the commands that ask Redis itself: `fairlead store`, `fairlead redis check` and `fairlead doctor`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])

OPTIONS = {
    "--redis": (
        "URL",
        "URL of Redis, as for `fairlead serve`. Prefer FAIRLEAD_REDIS: process lists show flags.",
    ),
    "--redis-file": ("FILE", "File that contains this URL."),
    "--redis-ca-file": ("FILE", "Certificate authorities to trust for a rediss:// server."),
    "--redis-cert-file": ("FILE", "Certificate to present to a rediss:// server."),
    "--redis-key-file": ("FILE", "Key of that certificate."),
    "--data": ("FOLDER", "A node's folder, for its embedded Valkey."),
}


def redis_options(command: F) -> F:
    """Add the options of a node that concern Redis."""
    for name, (kind, description) in reversed(OPTIONS.items()):
        command = click.option(name, metavar=kind, help=description)(command)
    file = click.Path(path_type=Path)
    return click.option(
        "--config", type=file, envvar="FAIRLEAD_CONFIG", metavar="FILE", help="TOML file with a node's settings."
    )(command)


def names_redis(config: Path | None, flags: Mapping[str, str | None]) -> bool:
    """Whether one of these options, or the environment, says which Redis is meant."""
    named = any(f"FAIRLEAD_{name}" in os.environ for name in ("REDIS", "REDIS_FILE"))
    return named or config is not None or any(value is not None for value in flags.values())


def redis_url(config: Path | None, flags: Mapping[str, str | None]) -> str:
    """The URL of the Redis of a node with these flags, this file and the environment."""
    from fairlead.settings.loading import load

    settings = load(os.environ, config, flags)
    if settings.redis != "embedded":
        return settings.redis
    return f"unix://{(settings.data / 'valkey' / 'valkey.sock').absolute()}"
