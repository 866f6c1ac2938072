"""The network interfaces of the host and its addresses, as the kernel tells them in /proc.

`facts` reads it. Addresses of the loopback interface and link-local ones are left out, because every host has the same.
What does not fit into a fact is left out as a whole entry.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FACT: Final = 256
"""Characters of the value of a fact."""
ENTRIES: Final = 10_000
"""Lines that are read: a host of many containers has thousands of addresses."""


def network_facts(proc: Path = Path("/proc/net")) -> dict[str, str]:
    """`net.interfaces` and `net.addresses`, separated by commas."""
    found = {"net.interfaces": _joined(_interfaces()), "net.addresses": _joined(_addresses(proc))}
    return {name: value for name, value in found.items() if value}


def _interfaces() -> list[str]:
    try:
        return sorted(name for _, name in socket.if_nameindex() if name != "lo")
    except OSError:
        return []


def _addresses(proc: Path) -> list[str]:
    found = {*_ipv4(_read(proc / "fib_trie")), *_ipv6(_read(proc / "if_inet6"))}
    return [str(one) for one in sorted(found, key=lambda one: (one.version, int(one)))]


def _ipv4(lines: Iterable[str]) -> Iterable[ipaddress.IPv4Address]:
    """The local addresses of a routing table: each is on a line of its own before `/32 host LOCAL`."""
    before = ""
    for line in lines:
        if "host LOCAL" in line and before:
            address = ipaddress.IPv4Address(before)
            if not address.is_loopback and not address.is_link_local:
                yield address
        _, mark, given = line.partition("|-- ")
        before = given.strip() if mark else before


def _ipv6(lines: Iterable[str]) -> Iterable[ipaddress.IPv6Address]:
    """Each line begins with 32 hexadecimal digits."""
    for line in lines:
        digits = line.split(maxsplit=1)[0] if line.strip() else ""
        if len(digits) == 32:
            address = ipaddress.IPv6Address(int(digits, 16))
            if not address.is_loopback and not address.is_link_local:
                yield address


def _read(path: Path) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return [line for _, line in zip(range(ENTRIES), file, strict=False)]
    except OSError:
        return []


def _joined(entries: Iterable[str]) -> str:
    text = ""
    for entry in entries:
        longer = f"{text},{entry}" if text else entry
        if len(longer) > FACT:
            break
        text = longer
    return text
