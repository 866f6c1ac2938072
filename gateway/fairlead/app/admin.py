"""The admin port: /livez, /readyz and /metrics. It requires no credential, so it is separate from the other two ports.

/livez answers while the event loop runs. /readyz fails before the first heartbeat, while the node drains, when the
inbox receives nothing although Redis answers, and while the node leaves new links to others. It succeeds while Redis is
unavailable, and says so in its second line: otherwise an outage of Redis would take every node out of service at once.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.app.access.hosts import HostRules
from fairlead.app.api.problems import problem
from fairlead.errors import Forbidden
from fairlead.node import Node
from fairlead.settings import DEVELOPMENT_PLATFORM_TOKEN, is_loopback
from fairlead.telemetry.metrics import CONTENT_TYPE, OPENMETRICS, wants_openmetrics


def admin_app(node: Node) -> ASGIApp:
    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        why, redis = node.unready(), node.redis_problem()
        lines = [why or "ok", *([redis] if redis else [])]
        return PlainTextResponse("".join(f"{line}\n" for line in lines), 503 if why else 200)

    async def metrics(request: Request) -> Response:
        richer = wants_openmetrics(request.headers.get("accept", ""))
        return Response(node.metrics.exposition(richer), media_type=OPENMETRICS if richer else CONTENT_TYPE)

    app = Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])
    settings = node.settings
    if settings.platform_token != DEVELOPMENT_PLATFORM_TOKEN or not is_loopback(settings.admin_host):
        return app  # probes address the pod by its IP address
    hosts = HostRules(loopback_only=True)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                hosts.check(scope["headers"])
            except Forbidden as e:
                await problem(e)(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded
