"""A kubelet that probes the nodes of a test, so that a load balancer knows which of them are ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx2

from support.gateway.process import GatewayProcess
from support.plain_http import plain_client

PROBE_INTERVAL = 0.2


class Kubelet:
    """Probes nodes like a kubelet, and knows the link ports of those that are ready, as endpoints do."""

    def __init__(self, nodes: list[GatewayProcess]) -> None:
        self.nodes = nodes
        self.answers: dict[str, tuple[int, str]] = {}
        """Status and body of each node's last probe, by the address of its admin port."""
        self._http = plain_client(timeout=5)

    def ports(self) -> list[int]:
        ready = [node for node in self.nodes if self.answers.get(node.admin, (0, ""))[0] == 200]
        return [int(node.link.rpartition(":")[2]) for node in ready]

    async def probe(self, nodes: Sequence[GatewayProcess]) -> list[tuple[int, str]]:
        for node in nodes:
            try:
                answer = await self._http.get(f"{node.admin}/readyz")
                self.answers[node.admin] = answer.status_code, answer.text
            except httpx2.HTTPError:
                self.answers[node.admin] = 0, ""
        return [self.answers[node.admin] for node in nodes]

    async def run(self) -> None:
        try:
            while True:
                await self.probe(self.nodes)
                await asyncio.sleep(PROBE_INTERVAL)
        finally:
            await self._http.aclose()


@asynccontextmanager
async def probing(nodes: list[GatewayProcess]) -> AsyncIterator[Kubelet]:
    """Probes those of `nodes`, which may grow, until the end of the block."""
    kubelet = Kubelet(nodes)
    loop = asyncio.create_task(kubelet.run())
    try:
        yield kubelet
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
