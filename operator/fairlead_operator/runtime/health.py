"""/livez, /readyz and /metrics of the operator, on one port, without a credential.

Served by `main`. Alive is whose loop turns; ready is who sees the LinkGateways and can ask for the lease, whether it
leads or follows. A follower is ready too: it is what the other replica is worth.
"""

from __future__ import annotations

import time

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlead.errors import ConfigError
from fairlead_operator.metrics import Metrics
from fairlead_operator.runtime.controller import PASS_TIMEOUT, PERIOD, Controller
from fairlead_operator.runtime.leader_election import LeaderElector

STUCK = 2 * (PASS_TIMEOUT + PERIOD)
"""Seconds without a new round after which the loop is taken for dead. A round waits for no pass that goes on."""


class Health:
    def __init__(self, watch: Controller, lease: LeaderElector, metrics: Metrics) -> None:
        self._watch = watch
        self._lease = lease
        self._metrics = metrics
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._show)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> str:
        """Where it listens."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as e:
            raise ConfigError(f"{host}:{port} cannot be listened to: {e.strerror or e}") from e
        host, port = self._runner.addresses[0][:2]
        return f"{host}:{port}"

    async def aclose(self) -> None:
        await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        still = time.monotonic() - self._watch.turned_at
        if still > STUCK:
            return web.Response(status=503, text=f"the loop has not turned for {still:.0f} s\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self._watch.view.problem or self._lease.problem
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _show(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
