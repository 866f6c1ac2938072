"""Reads the events of agents in order, over lost connections, and says which of them were lost.

Made by `Client.events`. The reader knows the offset of what it has given to its caller, so a stream that breaks is
opened again after that, at the same node or the next. An event that the agent repeated comes twice, with the same id.
A reader of a group gets what no other has, and after a lost connection whatever was not acknowledged in time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import msgspec

from fairlead.client.command import NDJSON, RETRIES, RETRY, STABLE
from fairlead.client.models import AgentEvent, Failure, LostEvents
from fairlead.client.problem_details import error_class
from fairlead.client.result_lines import split_lines
from fairlead.client.transport import ConnectionLost, Request, Transport
from fairlead.errors import ConnectionRefused, FairleadError, Unavailable


class _Line(msgspec.Struct):
    """Any line; its members tell which kind it is. `{}` keeps the connection alive."""

    offset: str = ""
    agent: str = ""
    type: str = ""
    id: str = ""
    time: str | None = None
    data: object = None
    data_base64: str | None = None
    attempt: int = 1
    lost: LostEvents | None = None
    error: Failure | None = None


class _Passed(msgspec.Struct):
    """The stream has come as far as this offset, and nothing before it was for this reader."""

    offset: str


_decode = msgspec.json.Decoder(_Line).decode

EventLine = AgentEvent | LostEvents | _Passed


class EventReader:
    """Iterate over it. `offset` is the position after what was read last, with which another reader can go on. With
    `group` in the query, the group has its own, and `after` and `since` say where it begins."""

    def __init__(
        self, transport: Transport, query: Mapping[str, str | int], *, after: str, since: int | None, follow: bool
    ) -> None:
        self.offset = after
        self._transport = transport
        self._query = {name: value for name, value in query.items() if value}
        self._since = since
        self._follow = follow

    async def __aiter__(self) -> AsyncGenerator[AgentEvent | LostEvents]:
        """The events, in order. Without `follow` it ends with the last one. Raises Unavailable when no node answers for
        a while, and every error that repeating the request does not resolve."""
        failures = 0
        while True:
            opened, begun = time.monotonic(), False
            try:
                async with self._transport.stream(self._request(), _lines_of) as lines:
                    async for line in lines:
                        begun = True
                        if "group" not in self._query:
                            self.offset = line.offset
                        if not isinstance(line, _Passed):
                            yield line
                if not self._follow:
                    return
                raise ConnectionLost("the stream of events ended although it is followed")
            except (ConnectionRefused, Unavailable) as e:
                if begun or time.monotonic() - opened > STABLE:
                    failures = 0
                if failures == RETRIES or not (isinstance(e, ConnectionRefused) or e.temporary):
                    raise
            await asyncio.sleep(RETRY.delay(failures, random.random()) / 1000)
            failures += 1

    def _request(self) -> Request:
        params: dict[str, str | int] = {**self._query, "follow": "true" if self._follow else "false"}
        if self.offset:
            params["after"] = self.offset
        elif self._since is not None:
            params["since"] = self._since
        return Request("GET", "/v1/events", params, {"Accept": NDJSON})


async def _lines_of(parts: AsyncIterator[bytes]) -> AsyncGenerator[EventLine]:
    async for raw in split_lines(parts):
        try:
            line = _decode(raw)
        except msgspec.MsgspecError as e:
            raise FairleadError(
                f"invalid line in the stream: {e} (are client and gateway of different versions?)"
            ) from e
        if line.error is not None:
            kind = error_class(line.error.code, Unavailable if line.error.temporary else FairleadError)
            raise kind(line.error.message, code=line.error.code)
        if line.lost is not None:
            yield line.lost
        elif line.agent:
            yield AgentEvent(
                offset=line.offset, agent=line.agent, type=line.type, id=line.id, time=line.time, data=line.data,
                data_base64=line.data_base64, attempt=line.attempt,
            )  # fmt: skip
        elif line.offset:
            yield _Passed(line.offset)
