"""The admin port: /livez, /readyz and /metrics. No credential, so it listens apart from the other two ports.

/livez answers while the event loop turns. /readyz is false before the first beat, while draining and when the
inbox is deaf although Redis answers; it stays true while Redis is away, or an outage of Redis would take every
node out of service at once.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fairlead.node import Node
from fairlead.telemetry.metrics import CONTENT_TYPE, OPENMETRICS, wants_openmetrics


def admin_app(node: Node) -> Starlette:
    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        why = node.unready()
        return PlainTextResponse(f"{why}\n" if why else "ok\n", 503 if why else 200)

    async def metrics(request: Request) -> Response:
        richer = wants_openmetrics(request.headers.get("accept", ""))
        return Response(node.metrics.exposition(richer), media_type=OPENMETRICS if richer else CONTENT_TYPE)

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])
