"""One open command at the gateway's end of a link: which chunk comes next, and the credit of its output and its input.

`GatewayLink` creates it, and passes it the agent's messages of the command. Those who send the command's input (in
`routing`) read and record here how far they have come. It lives as long as the command is open on this link: a stream
that outlives links is the agent's, see `command_stream`. This module is pure: it holds no message and no clock.
"""

from __future__ import annotations

from collections import deque

from fairlead.errors import ProtocolViolation
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import Ack, Chunk, Credit, End

MAX_INPUT_CREDIT = 1 << 30
"""Bytes. No agent needs more, and a sum of credits stays a small integer."""


class GatewayStream:
    """The state of one open command. All sizes are in bytes."""

    __slots__ = (
        "acked", "bulk", "credit_left", "feeding", "full", "input_consumed", "input_credit", "input_dropped",
        "input_ended", "input_next", "input_sizes", "input_source", "input_spent", "input_waiting", "known", "next",
        "owed", "withheld",
    )  # fmt: skip

    def __init__(self, next_chunk: int, input_next: int, window: int) -> None:
        self.next = next_chunk
        self.acked = False
        """True once the agent has acknowledged the command on this link."""
        self.bulk = False
        """Whether the command was sent on this link and is of the lane `bulk`: what the agent sends gives way."""
        self.known = False
        """True if the agent has the command, or will have read it before anything that is written from now on. The
        agent would ignore input for a command that it does not have."""
        self.credit_left = window
        """How much the agent may still send before it is granted more credit."""
        self.owed = 0
        """How much was stored and not yet granted back."""
        self.full = False
        """True while the store holds so much for a reader that no credit is granted until the reader has read on."""
        self.withheld = 0
        """How much was stored while `full` was true, and not yet granted back."""
        self.input_next = input_next
        self.input_credit = window
        self.input_ended = False
        self.input_consumed = input_next
        """The agent has consumed all input before this chunk."""
        self.input_dropped = 0
        """All input before this chunk was removed from the store."""
        self.input_sizes: deque[int] | None = None
        """The sizes of the chunks from `input_consumed` on that were sent on this link."""
        self.input_source: str | None = None
        """The name of the content that is sent as the input when the agent asks for it; "" for what the caller writes,
        None if that is not known."""
        self.input_spent = 0
        """The bytes granted back that do not yet amount to a whole chunk."""
        self.feeding = False
        """True while a task sends input."""
        self.input_waiting = False
        """True if the store may have input that has not been read yet."""

    def agent_knows(self) -> None:
        """Record that the agent has the command, or that it was just written to the link."""
        self.known = True

    # -- output: from the agent to the store -------------------------------------------------------

    def receive_ack(self, ack: Ack) -> bool:
        """Returns whether it is the first one on this link."""
        if self.next and ack.state == "refused":
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"ack refuses {ack.id} after {self.next} chunks: expected that before the first"
            )
        first, self.acked = not self.acked, True
        return first

    def receive_chunk(self, chunk: Chunk, size: int) -> None:
        """`size` is the length of the payload of `chunk`."""
        if chunk.n != self.next:
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"chunk {chunk.n} of {chunk.id} out of order: expected {self.next}"
            )
        if size > self.credit_left:
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"chunk of {size} bytes of {chunk.id} exceeds the credit left, {self.credit_left}"
            )
        self.next += 1
        self.credit_left -= size

    def receive_end(self, end: End) -> None:
        if end.total != self.next:
            raise ProtocolViolation(
                CloseCode.PROTOCOL, f"end of {end.id} counts {end.total} chunks: expected {self.next}"
            )

    def repay(self, size: int, window: int) -> int:
        """Record that `size` bytes are stored. Returns the credit to grant: 0 until it amounts to half of `window`, and
        while credit is withheld."""
        if self.full:
            self.withheld += size
            return 0
        self.owed += size
        if self.owed * 2 < window:
            return 0
        grant, self.owed = self.owed, 0
        self.credit_left += grant
        return grant

    def withhold(self) -> None:
        """Grant no credit until `stop_withholding`, because the store holds too much for its reader."""
        self.full = True

    def stop_withholding(self) -> int:
        """Record that the reader has read on. Returns the bytes that were stored meanwhile, for `repay`."""
        size, self.withheld, self.full = self.withheld, 0, False
        return size

    def repay_all(self) -> int:
        """Return the credit for everything that is stored and was not granted back, even if credit is withheld."""
        grant, self.owed, self.withheld = self.owed + self.withheld, 0, 0
        self.credit_left += grant
        return grant

    # -- input: from the store to the agent --------------------------------------------------------

    @property
    def input_to_send(self) -> bool:
        """True if there may be input, and the agent has granted credit for it."""
        return self.input_waiting and self.input_credit > 0 and not self.input_ended

    def begin_feeding(self) -> bool:
        """Record that there is new input. Returns True if no task sends input now; the caller then starts one."""
        self.input_waiting = True
        if self.feeding:
            return False
        self.feeding = True
        return True

    def end_feeding(self) -> None:
        """Record that the task that sent input has ended."""
        self.feeding = False

    def begin_reading(self) -> int:
        """Record that the store is being read. Returns the number of the chunk to begin with. `begin_feeding` reports
        input that is stored from now on."""
        self.input_waiting = False
        return self.input_next

    def reading_failed(self) -> None:
        """Record that the store did not answer: it may still have input to read."""
        self.input_waiting = True

    def fed(self, size: int) -> None:
        """Record that an input chunk of `size` bytes was sent. The store may have more."""
        self.input_waiting = True
        self.input_next += 1
        self.input_credit -= size
        if self.input_sizes is None:
            self.input_sizes = deque()
        self.input_sizes.append(size)

    def end_input(self) -> None:
        """Send no more input on this link: its end was sent, or the next chunk no longer exists."""
        self.input_ended = True

    def receive_input_credit(self, credit: Credit) -> None:
        """Record that the agent has consumed more of its input."""
        if self.input_credit + credit.bytes > MAX_INPUT_CREDIT:
            raise ProtocolViolation(CloseCode.PROTOCOL, f"credit of {credit.id} exceeds max {MAX_INPUT_CREDIT} bytes")
        self.input_credit += credit.bytes
        self.input_spent += credit.bytes
        # An empty chunk is known to be consumed only when a later chunk was consumed.
        while self.input_sizes and self.input_spent and self.input_spent >= self.input_sizes[0]:
            self.input_spent -= self.input_sizes.popleft()
            self.input_consumed += 1

    def take_consumed(self) -> int:
        """The number of input chunks, from the first on, that the agent has consumed; 0 if there are no new ones since
        the last call."""
        if self.input_consumed <= self.input_dropped:
            return 0
        self.input_dropped = self.input_consumed
        return self.input_consumed
