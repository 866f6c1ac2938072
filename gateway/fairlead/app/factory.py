"""The two applications that the outside sees: the agents' door and the platform's API.

Made by the command line for a node that was started. The API's token is checked in front of everything, by plain
ASGI, so that no handler can forget it.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.app.agents import AgentRoutes
from fairlead.app.auth import Token
from fairlead.app.commands import CommandRoutes
from fairlead.app.link import LinkDoor
from fairlead.app.problem import on_defect, on_error, problem
from fairlead.errors import FairleadError, Unauthorized
from fairlead.node import Node


def link_app(node: Node) -> ASGIApp:
    """What agents reach: `/v1/link` and nothing else."""
    door = LinkDoor(node, Token(node.settings.agent_token, "agent"))
    return Starlette(routes=[WebSocketRoute("/v1/link", door.enter)])


def api_app(node: Node) -> ASGIApp:
    """What the platform reaches, behind its token."""
    commands, agents = CommandRoutes(node), AgentRoutes(node)
    routes = [
        Route("/v1/commands", commands.post, methods=["POST"]),
        Route("/v1/commands/{id}", commands.get, methods=["GET"]),
        Route("/v1/commands/{id}", commands.delete, methods=["DELETE"]),
        Route("/v1/commands/{id}/results", commands.results, methods=["GET"]),
        Route("/v1/commands/{id}/input", commands.input, methods=["POST"]),
        Route("/v1/agents", agents.list, methods=["GET"]),
        Route("/v1/agents/{id}", agents.get, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={FairleadError: on_error, Exception: on_defect})
    return Guarded(app, Token(node.settings.platform_token, "platform"))


class Guarded:
    """`app` behind a token."""

    def __init__(self, app: ASGIApp, token: Token) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._token.check(scope["headers"])
            except Unauthorized as e:
                await problem(e)(scope, receive, send)
                return
        await self._app(scope, receive, send)
