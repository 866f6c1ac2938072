"""What all sessions of a node that speak one encoding share, and which of them are in a state that is rare.

Each session has a reference to one `SessionContext`, so that an idle one stores none of it by itself. The link endpoint
makes one for each encoding. It decides nothing, and knows no session once its link is closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlead.hub.session_handler import SessionHandler
from fairlead.wire.codec import Codec
from fairlead.wire.messages import FromAgent

if TYPE_CHECKING:
    from fairlead.hub.pending_messages import PendingMessages


class SessionContext:
    __slots__ = ("codec", "handler", "message_counters", "paused", "totals", "waiters", "window")

    def __init__(self, codec: Codec[FromAgent], handler: SessionHandler, window: int) -> None:
        """`window` is the credit in bytes with which each command starts."""
        self.codec = codec
        self.handler = handler
        self.message_counters = handler.message_counters
        self.totals = handler.totals
        self.window = window
        self.paused: set[PendingMessages] = set()
        """The sessions whose connections are not read, because too much of what they sent is not stored yet."""
        self.waiters: dict[PendingMessages, asyncio.Future[None]] = {}
        """What `Session.wait_writable` waits for, of the sessions whose agents read slowly."""
