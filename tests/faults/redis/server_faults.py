"""Faults of one server: its disk, its speed, its certificate, and a kill with answers that waited for its disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from redis.exceptions import RedisError

from faults.redis.played_fleet import answering
from faults.redis.redis_fault import FSYNC, LOCAL, RedisFault, Scene
from support.short_certificate import Authority
from support.tls_redis import TlsRedis
from support.valkey.network_process import NetworkProcess
from support.valkey.server import PASSWORD, ValkeyServer
from support.waiting import until

DELAY = 0.05
LATE = 2.5
"""Seconds, at most, by which calls are late: longer than the second after which a node gives them up."""
FILLER = 24 << 20
"""Bytes beside the fleet's own, which a rewrite of the append-only file has to write."""
SLACK = 48 << 10
"""Bytes that a file may still grow by on a disk that is nearly full: some seconds of the fleet's heartbeats."""
VALID = 3.0
"""Seconds for which a certificate is valid that expires."""


class OneServer:
    """A Valkey behind a line of a network."""

    def __init__(self, folder: Path, options: tuple[str, ...] = ()) -> None:
        self.network = NetworkProcess()
        self.server = ValkeyServer(folder, options, network=self.network)
        self.line = self.network.line(self.server.port)

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@{self.server.address}"

    async def start(self) -> None:
        await self.server.start()
        await self.network.start()

    async def stop(self) -> None:
        await self.network.__aexit__(None, None, None)
        self.server.stop()


@asynccontextmanager
async def opened(made: OneServer) -> AsyncIterator[OneServer]:
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


@asynccontextmanager
async def one_server(folder: Path) -> AsyncIterator[OneServer]:
    async with opened(OneServer(folder)) as made:
        yield made


@asynccontextmanager
async def synchronous(folder: Path) -> AsyncIterator[OneServer]:
    """Every write is on the disk before its answer."""
    async with opened(OneServer(folder, ("--appendfsync", "always"))) as made:
        yield made


class ServerWithTls:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "authority")
        self.server = ValkeyServer(folder / "valkey", password="")
        self.front = TlsRedis(f"redis://127.0.0.1:{self.server.port}", self.authority.issue(86_400))

    @property
    def url(self) -> str:
        return f"{self.front.url}?ssl_ca_certs={self.authority.certificate}"

    async def present(self, certificate: Path) -> None:
        """Close all connections and open the port with another certificate, as a restart does."""
        await self.front.stop()
        self.front.certificate = certificate
        await self.front.start()


@asynccontextmanager
async def with_tls(folder: Path) -> AsyncIterator[ServerWithTls]:
    made = ServerWithTls(folder)
    try:
        await made.server.start()
        await made.front.start()
        yield made
    finally:
        await made.front.stop()
        made.server.stop()


async def disk_full(scene: Scene) -> None:
    """The append-only file cannot grow: Redis refuses whatever writes, and nodes say why. Links stay."""
    server: ValkeyServer = scene.servers.server
    links = await _links(scene)
    server.limit_files(_largest(server) + SLACK)
    await until(lambda: _refuses(server, "MISCONF"))
    for word in ("cannot write", "disk"):
        await _all_say(scene, word)
    await _posts_are_told(scene, "cannot write to its disk")
    await asyncio.sleep(scene.lengths.trouble)
    assert await _links(scene) == links, "links were closed although no node would take them"
    server.limit_files(None)
    await _works_again(scene, server)


async def synchronous_disk_full(scene: Scene) -> None:
    """With `appendfsync always` a full disk ends the server; it is started again once there is space."""
    server: ValkeyServer = scene.servers.server
    server.limit_files(_largest(server) + SLACK)
    await until(lambda: not server.running)
    await asyncio.sleep(scene.lengths.trouble)
    await server.start()
    await answering(scene.fleet)


async def rewrite_failing(scene: Scene) -> None:
    """The append-only file cannot be rewritten, and grows. Everything goes on, and nodes say what is wrong."""
    server: ValkeyServer = scene.servers.server
    for number in range(FILLER >> 20):
        await server.call("SET", f"filler:{number}", "x" * (1 << 20), "PX", 3_600_000)
    await server.call("CONFIG", "SET", "rdbcompression", "no")
    await _rewrite(server, "ok")
    server.limit_files(FILLER - (4 << 20))
    await _rewrite(server, "err")
    await _all_say(scene, "cannot rewrite its append-only file")
    await asyncio.sleep(scene.lengths.trouble)
    server.limit_files(None)
    await _rewrite(server, "ok")
    await _all_say(scene, "")
    await answering(scene.fleet)


async def slow(scene: Scene) -> None:
    """Every call takes 50 ms longer."""
    scene.servers.line.delay_by(DELAY, DELAY)
    await asyncio.sleep(scene.lengths.trouble)
    scene.servers.line.delay_by(0, 0)
    await answering(scene.fleet)


async def late(scene: Scene) -> None:
    """Calls reach Redis up to 2.5 s late, also those whose node has given them up and has closed its connection."""
    scene.servers.line.delay_by(0, LATE)
    await asyncio.sleep(scene.lengths.trouble)
    scene.servers.line.delay_by(0, 0)
    await answering(scene.fleet)


async def certificate_expired(scene: Scene) -> None:
    """Connections that are open stay; new ones are refused, and nodes say why, until the certificate is renewed."""
    servers: ServerWithTls = scene.servers
    expiring = servers.authority.issue(VALID)
    began = time.monotonic()
    await servers.present(expiring)
    await asyncio.sleep(max(0.0, began + VALID + 1.0 - time.monotonic()))
    await servers.present(expiring)
    await _all_say(scene, "certificate has expired")
    await _posts_are_told(scene, "certificate has expired")
    await asyncio.sleep(scene.lengths.trouble)
    await servers.present(servers.authority.issue(86_400))
    await answering(scene.fleet)


async def killed(scene: Scene) -> None:
    """And started again on its disk."""
    server: ValkeyServer = scene.servers.server
    server.kill()
    await asyncio.sleep(1.0)
    await server.start()
    await answering(scene.fleet)


def _largest(server: ValkeyServer) -> int:
    """Bytes of the largest file of the server's append-only files."""
    return max(path.stat().st_size for path in (server.folder / "appendonlydir").iterdir())


async def _refuses(server: ValkeyServer, code: str) -> bool:
    try:
        await server.call("SET", "probe", 1, "PX", 1_000)
    except RedisError as e:
        return code in f"{getattr(e, 'status_code', '')} {e}"
    return False


async def _works_again(scene: Scene, server: ValkeyServer) -> None:
    async def writes() -> bool:
        return not await _refuses(server, "")

    await until(writes)
    await _all_say(scene, "")
    await answering(scene.fleet)


async def _rewrite(server: ValkeyServer, expected: str) -> None:
    async def ended() -> bool:
        info = await server.info("persistence")
        return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]

    await until(ended)
    await server.call("BGREWRITEAOF")
    await until(ended)
    assert (await server.info("persistence"))["aof_last_bgrewrite_status"] == expected


async def _all_say(scene: Scene, words: str) -> None:
    """Wait until each node's /readyz is ready with these words beside; "" for none."""

    async def says() -> bool:
        for node in scene.fleet.nodes:
            answer = await scene.fleet.http.get(f"http://127.0.0.1:{node.admin}/readyz", timeout=25)
            assert answer.status_code == 200, answer.text
            if (words not in answer.text) if words else answer.text != "ok\n":
                return False
        return True

    await until(says)


async def _posts_are_told(scene: Scene, words: str) -> None:
    """A post is refused at each node with these words."""
    for node in scene.fleet.nodes:
        url = f"http://127.0.0.1:{node.api}/v1/commands"
        answer = await scene.fleet.http.post(url, json={"agent": scene.fleet.names[0], "method": "work"}, timeout=25)
        assert answer.status_code == 503, answer.text
        assert words in answer.text, answer.text


async def _links(scene: Scene) -> float:
    return sum([await scene.fleet.metric(node, "fairlead_links") for node in scene.fleet.nodes])


NOTHING: frozenset[str] = frozenset()
SERVER_FAULTS = (
    RedisFault("disk full: writes refused", one_server, disk_full, NOTHING, (LOCAL,), ("--bus-grace", "8")),
    RedisFault("disk full with `appendfsync always`: the server ends", synchronous, synchronous_disk_full, NOTHING,
               (FSYNC,)),
    RedisFault("append-only file cannot be rewritten", one_server, rewrite_failing, NOTHING, (LOCAL,)),
    RedisFault("50 ms slower", one_server, slow, NOTHING, (LOCAL,)),
    RedisFault("calls executed up to 2.5 s late", one_server, late, NOTHING, (LOCAL,)),
    RedisFault("TLS certificate expired, then renewed", with_tls, certificate_expired, NOTHING, (LOCAL,)),
    RedisFault("killed and started again on its disk", synchronous, killed, NOTHING, (FSYNC,)),
)  # fmt: skip
