"""The gateway's end of a link with a window of its own, for tests without a node, whose setting it otherwise is."""

from __future__ import annotations

from fairlead.wire.gateway_link import GatewayLink
from fairlead.wire.messages import WINDOW


class WindowedLink(GatewayLink):
    __slots__ = ("window",)

    window: int

    def __init__(self, window: int = WINDOW) -> None:
        super().__init__()
        self.window = window
