"""One command from its post to its end: its results in order and exactly once, even over lost connections; its input;
its cancellation.

Made by `Client.command` and `Client.attach`. The client knows the offset of what it has given to the caller, so a
stream that breaks is opened again after that, at the same node or the next; a post that got no answer is repeated
with its key, which makes it the same command. Leaving the `async with` only stops reading: a command ends by itself,
at its deadline or by `cancel`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType

from fairlead.client.models import Chunk, End
from fairlead.client.result_lines import Continuation, Line, Started, lines_of
from fairlead.client.signer import SignedCommand
from fairlead.client.transport import ConnectionLost, Request, Transport
from fairlead.errors import ConnectionRefused, FairleadError, Unavailable
from fairlead.signing.input_signature import OVERHEAD
from fairlead.wire.retry import RetryPolicy

NDJSON = "application/x-ndjson"
CHUNK = 64 << 10
"""Bytes of input in one request: one chunk of the link protocol, so that the chunk is never split."""
AGAIN = "retry"
"""The kind of the result with which another run of the command begins: those before it are void."""
RETRIES = 16
RETRY = RetryPolicy(first=200, base=200, cap=5_000)
"""Sixteen retries take 21 s on average and 42 s at most: longer than a restart of a gateway."""
STABLE = 10.0
"""Seconds after which a connection counts as good even without output: the count of retries then begins anew."""


class Command:
    """Use it with `async with`, and iterate over it for its output. `end` is set when the output is over."""

    def __init__(
        self,
        transport: Transport,
        post: Request | Callable[[], Awaitable[Request]] | None,
        command: str = "",
        start: int = 0,
        follow: bool = True,
        signed: SignedCommand | None = None,
    ) -> None:
        """`post` makes the command; a function is called when the command is about to be posted. `signed` signs its
        input."""
        self.id = command
        self.next = start
        """The offset of the next result."""
        self.end: End | None = None
        """How the command ended; None until its output has been read to the end."""
        self.recorded = False
        """Whether the gateway records what the terminal shows."""
        self.replayed = False
        """Whether an earlier post has started it, with the same Idempotency-Key or approval."""
        self.waits_for = ""
        """Why the agent, which has no link, had to be waited for when the command was posted; "" if it had one."""
        self._transport = transport
        self._post = post
        self._signed = signed
        self._follow = follow
        self._reader: AsyncGenerator[Started | Chunk] = self._read()
        self._posted = False
        """Whether a post was sent but not answered, so that it is unknown whether the command exists."""
        self._sent = 0
        """The number of chunks of input sent."""
        self._sending = asyncio.Lock()

    async def __aenter__(self) -> Command:
        """Post it, and wait for its id."""
        if callable(self._post):
            self._post = await self._post()
        if self._post is not None:
            try:
                first = await anext(self._reader, None)
            except BaseException:
                await self._reader.aclose()
                raise
            if not isinstance(first, Started):
                raise FairleadError(
                    "the answer to a command does not begin with its id (are client and gateway of different versions?)"
                )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._reader.aclose()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """The output, in order. Raises Unavailable when no node answers for a while, RecordLost, ResultsTrimmed,
        ResultsDropped."""
        async for one in self._reader:
            if isinstance(one, Chunk):
                yield one

    async def wait(self) -> End:
        """Discard the rest of the output; returns the end."""
        async for _ in self:
            pass
        if self.end is None:
            raise FairleadError(f"command {self.id} has not ended, and is not followed")
        return self.end

    async def cancel(self) -> None:
        """Cancel the command; its end then arrives as usual. The request is repeated for up to 42 s if the connection
        is lost or the node is busy; use a timeout if that is too long. Raises FairleadError if repeating it does not
        help.
        """
        await self._send_with_retries(Request("DELETE", f"/v1/commands/{self.id}"))

    @property
    def input_limit(self) -> int:
        """The most bytes of input that one chunk carries: more is split."""
        return CHUNK - OVERHEAD if self._signed is not None else CHUNK

    async def input(self, data: bytes, end: bool = False) -> None:
        """Send input, and with `end` the end of the input. Waits while the agent does not read; raises InvalidRequest
        if the command is over. A chunk that may have been lost is sent again, and by its number the gateway recognizes
        one that it already has.
        """
        async with self._sending:
            most = self.input_limit
            pieces = [data[i : i + most] for i in range(0, len(data), most)] or ([b""] if end else [])
            for i, piece in enumerate(pieces):
                last = end and i == len(pieces) - 1
                params: dict[str, str | int] = {"n": self._sent, **({"end": "true"} if last else {})}
                headers = {"Content-Type": "application/octet-stream"}
                body = piece if self._signed is None else await self._signed.sign_input(self._sent, last, piece)
                await self._send_with_retries(Request("POST", f"/v1/commands/{self.id}/input", params, headers, body))
                self._sent += 1

    async def _send_with_retries(self, request: Request) -> None:
        failures = 0
        while True:
            try:
                await self._transport.call(request)
                return
            except (Unavailable, ConnectionRefused) as e:
                if not _is_retryable(e) or failures == RETRIES:
                    raise
                # An agent that does not read its input is no failure: the command's deadline ends the wait.
                failures = 0 if e.details.get("code") == "input_full" else failures + 1
            await asyncio.sleep(RETRY.delay(failures, random.random()) / 1000)

    async def _read(self) -> AsyncGenerator[Started | Chunk]:
        """Read the stream, opening it again when it breaks, until its end or until the retries are used up."""
        failures = 0
        while True:
            opened, before = time.monotonic(), self.next
            try:
                again = False
                async with self._transport.stream(self._request(), lines_of) as lines:
                    async for line in lines:
                        if isinstance(line, Continuation):
                            again = True
                            break
                        if (shown := self._record(line)) is not None:
                            yield shown
                        if self.end is not None:
                            return
                if again:
                    if (
                        self.next == before
                    ):  # the node is stopping: after this delay its port is closed, so another node is used
                        await asyncio.sleep(RETRY.delay(0, random.random()) / 1000)
                    continue
                if self.id and not self._follow:
                    return
                raise ConnectionLost(f"the stream of {self.id or 'the command'} ended before the command did")
            except (ConnectionRefused, Unavailable) as e:
                self._posted = self._posted or isinstance(e, ConnectionLost)
                if self.id:
                    final = not _is_retryable(e)
                else:
                    # A refusal is an answer of the gateway. Only a post without an answer is repeated, with the same
                    # key.
                    final = not self._posted or not isinstance(e, ConnectionLost | ConnectionRefused)
                if self.next > before or time.monotonic() - opened > STABLE:
                    failures = 0
                if final or failures == RETRIES:
                    raise
            await asyncio.sleep(RETRY.delay(failures, random.random()) / 1000)
            failures += 1

    def _request(self) -> Request:
        if self.id:
            params: dict[str, str | int] = {"from": self.next, "follow": "true" if self._follow else "false"}
            return Request("GET", f"/v1/commands/{self.id}/results", params, {"Accept": NDJSON})
        assert isinstance(self._post, Request), "a command is posted, or known by its id"
        return self._post

    def _record(self, line: Line) -> Started | Chunk | None:
        """Record a line; returns it if it is for the caller."""
        if isinstance(line, End):
            self.end = line
            return None
        if isinstance(line, Started):
            first = not self.id
            self.id, self.recorded = line.id, line.recorded
            self.replayed = line.replayed and not self._posted  # otherwise it may be this post that had no answer
            if line.presence != "online":
                self.waits_for = f"{line.presence}: {line.why}" if line.why else line.presence
            return line if first else None
        if isinstance(line, Chunk) and (line.offset >= self.next or line.kind == AGAIN):
            self.next = line.offset + 1  # a lower one if Redis has lost what was read, before the command ran again
            return line
        return None  # the caller received it before the connection was lost


def _is_retryable(e: FairleadError) -> bool:
    """Whether the same request may succeed later, at this node or another."""
    return isinstance(e, ConnectionRefused) or e.temporary
