"""Which addresses a sink may send to: none of this machine and none of its own link, unless they are allowed.

Whoever may write a URL into the file of sinks could otherwise reach the admin port of the node, or the metadata service
of a cloud, which gives credentials to whoever asks from this machine. The addresses of a name are checked, and one that
was checked is connected to, so that a name which leads elsewhere a moment later gains nothing. It is pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")
_METADATA = tuple(
    map(
        ipaddress.ip_network,
        (
            "fd00:ec2::/32",  # AWS: credentials of instances at ::254, of pods at ::23
            "fd20:ce::/32",  # Google Cloud
            "fd00:c1::/32",  # Oracle Cloud
            "fd00:42::/32",  # Scaleway
            "100.100.100.200/32",  # Alibaba Cloud
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle Cloud, older
        ),
    )
)
"""Metadata services of clouds that are at no link-local address."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def why_refused(given: str, allowed: Sequence[Network], *, own: bool = False) -> str:
    """Why nothing is sent to this address, as a predicate; "" if something may be. `own` says that an interface of this
    machine has it."""
    try:
        address = ipaddress.ip_address(given.partition("%")[0])
    except ValueError:
        return "is no IP address"
    real = _real(address)
    if any(one.version == network.version and one in network for network in allowed for one in (address, real)):
        return ""
    for name in ("loopback", "link_local", "multicast", "unspecified", "reserved"):
        if getattr(real, f"is_{name}"):
            return f"is {name.replace('_', '-')}"
    if any(one.version == real.version and real in one for one in _METADATA):
        return "is that of a metadata service"
    if own:
        return "is of this machine"
    return "is of this network" if isinstance(real, ipaddress.IPv4Address) and real in _THIS_NETWORK else ""


def _real(address: Address) -> Address:
    """The address that packets go to in the end: that of IPv4 which one of IPv6 stands for."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour or address
