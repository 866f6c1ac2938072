"""Serves /livez, /readyz and /metrics of the operator on one port, without a credential.

Run by `process`. The process is alive while the controller begins rounds. It is ready while it can watch the
LinkGateways and read the Lease, whether or not it is the leader: a follower is ready, too, because it can take over.
"""

from __future__ import annotations

import time

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairlead.errors import ConfigError
from fairlead_operator.metrics import Metrics
from fairlead_operator.runtime.controller import PASS_TIMEOUT, PERIOD, Controller
from fairlead_operator.runtime.leader_election import LeaderElector

STUCK_AFTER = 2 * (PASS_TIMEOUT + PERIOD)
"""Seconds without a new round after which the controller is considered stuck. No round waits for a running pass."""


class HealthServer:
    def __init__(self, controller: Controller, elector: LeaderElector, metrics: Metrics) -> None:
        self._controller = controller
        self._elector = elector
        self._metrics = metrics
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._show_metrics)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self, host: str, port: int) -> str:
        """Returns the address that it listens on. Raises ConfigError when it cannot."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as e:
            raise ConfigError(f"cannot listen on {host}:{port}: {e.strerror or e}") from e
        host, port = self._runner.addresses[0][:2]
        return f"{host}:{port}"

    async def aclose(self) -> None:
        await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        seconds = time.monotonic() - self._controller.round_began_at
        if seconds > STUCK_AFTER:
            return web.Response(status=503, text=f"the controller has not begun a round for {seconds:.0f} s\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        problem = self._controller.informer.problem or self._elector.problem
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
