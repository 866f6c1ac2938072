"""`rediss+sentinel://` and `rediss+cluster://`: TLS to every server, with a user that has the rights of a node."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.store.servers.opening import open_store

from support.gateway.enrolled_agent import CLI
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.short_certificate import Authority
from support.valkey.cluster import Cluster
from support.valkey.replication import Replication
from support.valkey.server import PASSWORD, ValkeyServer
from support.valkey.tls_network import TlsNetwork
from support.waiting import until

pytestmark = pytest.mark.timeout(240)

Servers = Replication | Cluster


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture(params=[Replication, Cluster])
async def servers(request: pytest.FixtureRequest, authority: Authority, tmp_path: Path) -> AsyncIterator[Servers]:
    async with TlsNetwork(authority.issue(86_400, "127.0.0.1")) as network:
        made: Servers = request.param(tmp_path / "redis", network=network)
        try:
            await made.start()
            yield made
        finally:
            made.stop()


def rules_of_a_node(folder: Path) -> list[str]:
    """The command with which `fairlead redis acl` makes the user of nodes, with the password `node`."""
    password = folder / "password"
    password.write_text("node\n")
    command = [*CLI, "redis", "acl", "--commands", "--node-password-file", str(password)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    [line] = [line for line in printed.splitlines() if "fairlead-node" in line]
    return line.split()


async def primary_of(servers: Servers) -> ValkeyServer:
    """One whose loss a replica makes up for."""
    return await servers.primary() if isinstance(servers, Replication) else servers.servers[0]


async def test_a_fleet_works_over_tls_and_goes_on_at_the_server_that_takes_over(
    servers: Servers, authority: Authority, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi,
    tmp_path: Path,
) -> None:  # fmt: skip
    rules = rules_of_a_node(tmp_path)
    for server in servers.servers:
        assert await server.call(*rules)
    url = servers.url.replace("redis+", "rediss+").replace(f":{PASSWORD}@", "fairlead-node:node@")
    stranger = open_store(url)
    stranger.start()
    await until(lambda: "certificate verify failed" in stranger.last_error.message.lower())
    assert not stranger.available
    await stranger.aclose()

    # In a thread, because the network of the servers is in this process.
    gateway = await asyncio.to_thread(make_gateway, url, "--redis-ca-file", str(authority.certificate))
    api, peer = api_of(gateway), await dial(gateway)
    await peer.greet()

    async def works() -> bool:
        answer = await api.post({"agent": peer.agent, "method": "m"})
        if answer.status_code != 202:
            return False
        command = answer.json()["id"]
        while (await peer.command()).id != command:  # one whose outcome was not known when it was posted
            pass
        await api.http.delete(f"{gateway.api}/v1/commands/{command}")
        return True

    await until(works)
    (await primary_of(servers)).kill()
    await until(works, 90)
