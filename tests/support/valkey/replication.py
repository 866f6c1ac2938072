"""A primary with two replicas, which three Sentinels watch."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from fairlead.store.embedded_valkey.binary import find_binary

from support.valkey.network import Network
from support.valkey.server import PASSWORD, ValkeyServer
from support.waiting import until

NAME = "fleet"
SENTINEL_PASSWORD = "password-of-the-sentinels"
DOWN_AFTER_MS = 1_000
NETWORK_DOWN_AFTER_MS = 2_500
"""In a network that runs in the process of the test, which may be busy."""


class SentinelServer(ValkeyServer):
    def __init__(self, folder: Path, primary: ValkeyServer) -> None:
        super().__init__(folder, password=SENTINEL_PASSWORD, network=primary.network)
        down_after, source = DOWN_AFTER_MS, ""
        if primary.network is not None:
            down_after = NETWORK_DOWN_AFTER_MS
            source = (
                f"bind-source-addr {self.host}\nsentinel announce-ip 127.0.0.1\n"
                f"sentinel announce-port {self.public_port}\n"
            )
        (folder / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\nrequirepass {SENTINEL_PASSWORD}\n{source}"
            f"sentinel sentinel-pass {SENTINEL_PASSWORD}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {primary.public_port} 2\nsentinel auth-pass {NAME} {PASSWORD}\n"
            f"sentinel down-after-milliseconds {NAME} {down_after}\nsentinel failover-timeout {NAME} 6000\n"
        )

    def command(self) -> list[str]:
        return [str(find_binary()), str(self.folder / "sentinel.conf"), "--sentinel"]


class Replication:
    def __init__(self, folder: Path, options: Sequence[str] = (), network: Network | None = None) -> None:
        self.network = network
        self.servers = [ValkeyServer(folder / f"valkey-{i}", options, network=network) for i in range(3)]
        self.sentinels = [SentinelServer(folder / f"sentinel-{i}", self.servers[0]) for i in range(3)]

    @property
    def url(self) -> str:
        named = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://:{PASSWORD}@{named}/{NAME}?sentinel_password={SENTINEL_PASSWORD}"

    async def start(self) -> None:
        await asyncio.gather(*(server.start() for server in self.servers))
        if self.network is not None:
            await self.network.start()
        for replica in self.servers[1:]:
            await replica.call("REPLICAOF", "127.0.0.1", self.servers[0].public_port)
        await asyncio.gather(*(sentinel.start() for sentinel in self.sentinels))
        await until(self.is_complete, 60)

    async def is_complete(self) -> bool:
        """Whether every Sentinel knows the others and all replicas, and these follow the primary."""
        for sentinel in self.sentinels:
            facts = _table(await sentinel.call("SENTINEL", "MASTER", NAME))
            if (facts["num-slaves"], facts["num-other-sentinels"], facts["flags"]) != ("2", "2", "master"):
                return False
        primary = await self.primary()
        info = await primary.info("replication")
        return all(info.get(f"slave{i}", {}).get("state") == "online" for i in range(2))

    async def primary(self) -> ValkeyServer:
        """The one that a Sentinel names: the last one, which no test cuts off from the others."""
        _, port = await self.sentinels[-1].call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return next(server for server in self.servers if server.public_port == int(port))

    def primaries(self) -> set[ValkeyServer]:
        """Those that were ever the primary, by the logs of the Sentinels: on a slow machine they may make more of them
        than a test asks for."""
        ports = {self.servers[0].public_port}
        for sentinel in self.sentinels:
            log = (sentinel.folder / "log").read_text(errors="replace")
            ports.update(int(port) for port in re.findall(rf"\+switch-master {NAME} \S+ \d+ \S+ (\d+)", log))
        return {server for server in self.servers if server.public_port in ports}

    async def fail_over(self) -> None:
        """By hand, as before maintenance of the primary."""
        await self.sentinels[0].call("SENTINEL", "FAILOVER", NAME)

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.stop()


def _table(flat: object) -> dict[str, str]:
    if isinstance(flat, dict):
        return {_text(key): _text(value) for key, value in flat.items()}
    assert isinstance(flat, list)
    return {_text(key): _text(value) for key, value in zip(flat[::2], flat[1::2], strict=True)}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
