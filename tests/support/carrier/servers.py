"""The types of what the carrier's fixtures make: servers, applications and raw clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from starlette.applications import Starlette
from starlette.types import ASGIApp

from fairlead.carrier.connection_context import ConnectionContext
from fairlead.carrier.listener import Listener

from support.carrier.raw_client import RawClient


class Serve(Protocol):
    """Runs an application on a server with these options of its configuration; the port."""

    def __call__(self, app: ASGIApp, **options: object) -> Awaitable[int]: ...


class AttachedApp(Protocol):
    """An application that hands each WebSocket to a new listener."""

    def __call__(self, make: Callable[[], Listener], context: ConnectionContext | None = None) -> Starlette: ...


class Dial(Protocol):
    """Opens a raw client; with `upgrade`, as an open WebSocket."""

    def __call__(self, port: int, *, upgrade: bool = True, path: str = "/", **headers: str) -> Awaitable[RawClient]: ...


EchoApp: TypeAlias = Callable[[], Starlette]
