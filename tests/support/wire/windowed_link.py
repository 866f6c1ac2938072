"""The gateway's end of a link whose window is not the usual one, without a node that it could be the setting of."""

from __future__ import annotations

from fairlead.wire.gateway_link import GatewayLink
from fairlead.wire.messages import WINDOW


class WindowedLink(GatewayLink):
    __slots__ = ("window",)

    window: int

    def __init__(self, window: int = WINDOW) -> None:
        super().__init__()
        self.window = window
