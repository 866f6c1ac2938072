"""Makes the client of Redis that a URL asks for. A node, the operator and `fairlead store` call it."""

from __future__ import annotations

from fairlead.errors import ConfigError
from fairlead.redis_url import EXPECTED, StoreKind, parse_redis_url
from fairlead.store.cluster.cluster_store import ClusterStore
from fairlead.store.endpoint import Endpoint
from fairlead.store.pipeliner import Pipeliner
from fairlead.store.reply_limit import ReplyLimit
from fairlead.store.servers.confirmer import Confirmer, Durability
from fairlead.store.store import Store


def open_store(
    url: str,
    client_name: str = "fairlead",
    allowance: ReplyLimit | None = None,
    durability: Durability = Durability.LOCAL,
) -> Store:
    """A client, which is to be started. `allowance` limits the bytes that a server may send (see `Endpoint`). Raises
    ConfigError if the URL is not valid."""
    try:
        parsed = parse_redis_url(url)
    except ValueError as e:
        raise ConfigError(f"invalid Redis URL: expected {EXPECTED} ({e})") from e
    if parsed.kind is StoreKind.CLUSTER:
        return ClusterStore(url, parsed, client_name, allowance, durability)
    confirmer = Confirmer.make(durability, Endpoint(url, client_name, allowance))
    return Pipeliner(url, client_name=client_name, allowance=allowance, confirmer=confirmer)
