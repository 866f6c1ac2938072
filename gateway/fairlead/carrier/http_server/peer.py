"""Who is at the other end of a connection, besides its address: what TLS and the list of trusted proxies say.

It is in the scope of an upgrade request, under `PEER` in `extensions`, if there is anything to say. The endpoint asks
with `peer_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PEER: Final = "fairlead.peer"


@dataclass(frozen=True, slots=True)
class Peer:
    """`certificate` is the client's, in DER, verified against the authorities of the port. `proxied` says whether the
    connection was made by a trusted proxy, whose headers may be believed."""

    certificate: bytes | None = None
    proxied: bool = False


STRANGER: Final = Peer()
PROXY: Final = Peer(proxied=True)
"""A trusted proxy without a certificate."""


def peer_of(scope: Mapping[str, Any]) -> Peer:
    peer = (scope.get("extensions") or {}).get(PEER)
    return peer if isinstance(peer, Peer) else STRANGER
