"""What kind of machine this is: the facts of hello, and the result of `sys.info`.

The agent reads the facts when it is created, and from time to time (see `fact_reader`). A value is None if the host
does not provide it.
"""

from __future__ import annotations

import os
import platform
import shlex
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fairlead.agent.commands.output import to_json
from fairlead.agent.host.cloud_instance import cloud_facts
from fairlead.agent.host.installed_packages import InstalledPackages
from fairlead.agent.host.network_facts import network_facts
from fairlead.errors import ConfigError
from fairlead.version import __version__
from fairlead.wire.messages import FACT_COUNT, FACTS_LIMIT

RELEASE: Final = 64 << 10
"""Characters of os-release that are read."""


def host_facts(root: Path = Path("/")) -> dict[str, str]:
    """The facts that every agent has; the user's own facts override them."""
    return {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "hostname": socket.gethostname(),  # that of `platform` is read only once
        "kernel": platform.release(),
        "cpus": str(os.cpu_count() or 1),
        "python": platform.python_version(),
        "sdk": __version__,
    } | _distribution(root)


def collected_facts(packages: InstalledPackages) -> dict[str, str]:
    """What else can be told of the host. It is less important than what the user says."""
    root = packages.root
    return {**packages.facts(), **network_facts(root / "proc/net"), **cloud_facts(root / "sys/class/dmi/id")}


def agent_facts(given: Mapping[str, str], packages: InstalledPackages | None = None) -> dict[str, str]:
    """The facts of an agent whose user says `given`, on the host of `packages`. Raises ConfigError when these exceed
    the protocol's limits; what was collected besides is left out where there is no room for it."""
    packages = packages or InstalledPackages()
    facts = check_facts({key: value[:256] for key, value in host_facts(packages.root).items()} | dict(given))
    for key, value in collected_facts(packages).items():
        if key not in facts:
            try:
                facts = check_facts({**facts, key: value[:256]})
            except ConfigError:
                continue
    return facts


def _distribution(root: Path) -> dict[str, str]:
    """`os.name` and `os.version` of os-release(5), such as debian and 12; empty if the host has no such file. The
    function of `platform` reads the file only once."""
    release = _os_release(root)
    if release is None:
        return {}
    found = {"os.name": release.get("ID", "linux"), "os.version": release.get("VERSION_ID", "")}
    return {key: value[:256] for key, value in found.items() if value}


def _os_release(root: Path) -> dict[str, str] | None:
    for path in (root / "etc/os-release", root / "usr/lib/os-release"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read(RELEASE).splitlines()
        except OSError:
            continue
        return {name: _unquoted(value) for name, mark, value in (line.partition("=") for line in lines) if mark}
    return None


def _unquoted(value: str) -> str:
    """What a shell would assign; nothing if it is no assignment."""
    try:
        return "".join(shlex.split(value)[:1])
    except ValueError:
        return ""


def check_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """`facts` with characters that UTF-8 can encode. Raises ConfigError when they exceed the protocol's limits: the
    gateway would refuse every hello.
    """
    if len(facts) > FACT_COUNT:
        raise ConfigError(f"too many facts ({len(facts)}): expected at most {FACT_COUNT}")
    for key, value in facts.items():
        if not (0 < len(key) <= 64 and len(value) <= 256):
            raise ConfigError(f"invalid fact {key[:70]!r}: keys have 1 to 64 characters, values at most 256")
    clean = {key: value.encode(errors="replace").decode() for key, value in facts.items()}
    if (size := len(to_json(clean))) > FACTS_LIMIT:
        raise ConfigError(f"facts of {size} bytes as JSON are too large: expected at most {FACTS_LIMIT} (use fewer)")
    return clean


def host_info() -> dict[str, object]:
    """os, kernel, arch, hostname, python, cpus, memory_bytes, uptime_s, load."""
    return {
        "os": platform.system().lower(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "hostname": platform.node(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "memory_bytes": _memory(),
        "uptime_s": _uptime(),
        "load": _load(),
    }


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _uptime() -> float | None:
    try:
        return round(time.clock_gettime(time.CLOCK_BOOTTIME), 1)
    except (AttributeError, OSError):
        return None


def _load() -> list[float] | None:
    try:
        return list(os.getloadavg())
    except (AttributeError, OSError):
        return None
