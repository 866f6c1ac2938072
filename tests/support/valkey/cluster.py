"""A Cluster of primaries with a replica each, whose slots tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from support.free_ports import free_port
from support.valkey.network import Network
from support.valkey.server import PASSWORD, ValkeyServer
from support.waiting import until

NODE_TIMEOUT_MS = 1_500


NETWORK_NODE_TIMEOUT_MS = 3_000
"""In a network that runs in the process of the test, which may be busy."""


class ClusterServer(ValkeyServer):
    def __init__(self, folder: Path, options: Sequence[str], network: Network | None = None) -> None:
        self.bus_port = self.public_bus_port = free_port()
        timeout = NODE_TIMEOUT_MS if network is None else NETWORK_NODE_TIMEOUT_MS
        super().__init__(folder, (
            "--cluster-enabled", "yes", "--cluster-port", str(self.bus_port), "--cluster-announce-ip", "127.0.0.1",
            "--cluster-node-timeout", str(timeout), "--cluster-require-full-coverage", "no",
            "--cluster-replica-validity-factor", "0", *options,
        ), network=network)  # fmt: skip
        if network is not None:
            self.public_bus_port = network.line(self.bus_port).port
            self._options += (
                "--cluster-announce-port", str(self.public_port), "--cluster-announce-bus-port",
                str(self.public_bus_port),
            )  # fmt: skip

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, self.bus_port)

    async def id(self) -> str:
        return _text(await self.call("CLUSTER", "MYID"))


class Cluster:
    def __init__(
        self, folder: Path, primaries: int = 3, *, replicas: bool = True, options: Sequence[str] = (),
        network: Network | None = None,
    ) -> None:  # fmt: skip
        count = primaries * (2 if replicas else 1)
        self.network = network
        self.servers = [ClusterServer(folder / f"valkey-{i}", options, network) for i in range(count)]
        self._primaries = primaries

    @property
    def url(self) -> str:
        named = ",".join(server.address for server in self.servers)
        return f"redis+cluster://:{PASSWORD}@{named}"

    async def start(self) -> None:
        await asyncio.gather(*(server.start() for server in self.servers))
        if self.network is not None:
            await self.network.start()
        first = self.servers[0]
        for server in self.servers[1:]:
            await server.call("CLUSTER", "MEET", "127.0.0.1", first.public_port, first.public_bus_port)
        width = -(-REDIS_CLUSTER_HASH_SLOTS // self._primaries)
        for i in range(self._primaries):
            last = min((i + 1) * width, REDIS_CLUSTER_HASH_SLOTS) - 1
            await self.servers[i].call("CLUSTER", "ADDSLOTSRANGE", i * width, last)
        await until(self._all_know_all, 60)
        for i, replica in enumerate(self.servers[self._primaries :]):
            await replica.call("CLUSTER", "REPLICATE", await self.servers[i].id())
        await until(self.is_complete, 60)

    async def _all_know_all(self) -> bool:
        for server in self.servers:
            info = str(await server.call("CLUSTER", "INFO"))
            if "cluster_state:ok" not in info or f"cluster_known_nodes:{len(self.servers)}" not in info:
                return False
        return True

    async def is_complete(self) -> bool:
        """Whether every server that runs agrees that all slots are served, and every replica follows its primary."""
        for server in self.servers:
            info = await server.info("replication")
            if info["role"] == "slave" and info["master_link_status"] != "up":
                return False
        if not await self._all_know_all():
            return False
        shards = await self.servers[0].call("CLUSTER", "SLOTS")
        return len(shards) >= self._primaries and (
            len(self.servers) == self._primaries or all(len(shard) > 3 for shard in shards)
        )

    async def owner(self, key: str, ask: ValkeyServer | None = None) -> ClusterServer:
        """The primary that has the slot of `key`, as `ask` or any other server knows it."""
        return await self.owner_of(key_slot(key.encode()), ask or self.servers[0])

    async def owner_of(self, slot: int, ask: ValkeyServer) -> ClusterServer:
        for first, last, (_, port, *_), *_ in await ask.call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(server for server in self.servers if server.public_port == port)
        raise AssertionError(f"nobody has the slot {slot}")

    async def move_slot(self, slot: int, source: ClusterServer, target: ClusterServer) -> None:
        """Move a slot as `valkey-cli --cluster reshard` does: a few keys at a time, while clients go on."""
        source_id, target_id = await source.id(), await target.id()
        await target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        await source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := await source.call("CLUSTER", "GETKEYSINSLOT", slot, 5):
            await source.call(
                "MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "AUTH", PASSWORD, "KEYS", *keys
            )  # fmt: skip
        for server in (target, source, *self.servers):
            if (await server.info("replication"))["role"] == "master":
                await server.call("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    async def move_slot_at_once(self, slot: int, source: ClusterServer, target: ClusterServer) -> None:
        """Move a slot as Valkey 9 does by itself: its data first, then all of it at one moment."""
        await source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", await target.id())

        async def moved() -> bool:
            owners = [(await self.owner_of(slot, server)) for server in self.servers]
            return all(owner is target for owner in owners)

        await until(moved, 30)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
