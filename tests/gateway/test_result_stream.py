"""The answer to a post does not begin while a proxy written in Go may still close the connection because of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from starlette.requests import Request
from starlette.types import Message

from fairlead.app.routes.result_stream import LINES, SHORT, ResultStream, opening, payload_of
from fairlead.bus.inbox import Inbox
from fairlead.errors import BusUnavailable
from fairlead.fleet.command_record import AppendResult, CommandRecord, Result, ResultPage, StoredEnd, Target
from fairlead.fleet.schema import TargetState
from fairlead.routing.commands import results
from fairlead.routing.commands.result_doorbells import pack_added
from fairlead.routing.commands.results import ResultReader, ResultsUpdate
from fairlead.routing.failover_gate import FailoverGate
from fairlead.routing.fleet_store import FleetStore
from fairlead.routing.followers import Followers
from fairlead.routing.membership.membership import Membership
from fairlead.store.reply import Arg
from fairlead.telemetry.command_timing import CommandOrigin
from fairlead.wire.messages import Ack, End

from support.gateway.platform_api import GatewayApi
from support.gateway.process import GatewayProcess
from support.gateway.scripted_agent import DialAgent

HOUR = 3600.0


class Answer:
    """Collects what an ASGI server is sent, in order."""

    def __init__(self, *news: ResultsUpdate | Exception, opens: float) -> None:
        self.sent: list[Message] = []
        self.news = news
        self.opens = opens
        self.sent_before: list[int] = []
        """How many messages had been sent when each of the news was asked for."""

    async def pages(self) -> AsyncGenerator[ResultsUpdate]:
        for one in self.news:
            self.sent_before.append(len(self.sent))
            if isinstance(one, Exception):
                raise one
            yield one

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def run(self) -> list[dict[str, Any]]:
        scope = {"type": "http", "method": "POST", "path": "/v1/commands", "headers": []}
        request = Request(scope, self.receive)
        stream = ResultStream(request, LINES, {"id": "c"}, self.pages(), opens=self.opens)
        async with asyncio.timeout(20):
            await stream(scope, self.receive, self.send)
        assert [message["type"] for message in self.sent].count("http.response.start") == 1
        body = b"".join(message.get("body", b"") for message in self.sent)
        return [json.loads(line) for line in body.splitlines()]


def _result(offset: int, payload: bytes = b"x") -> Result:
    return Result(offset, "a", offset, "stdout", payload)


def _later(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_a_short_command_is_answered_in_one_piece() -> None:
    answer = Answer(ResultsUpdate([_result(0)]), ResultsUpdate([_result(1)], _ended()), opens=_later(HOUR))
    lines = await answer.run()
    assert [line.get("offset") for line in lines] == [None, 0, 1, None]
    assert "end" in lines[-1]
    assert answer.sent_before == [0, 0], "nothing may go out before the end"
    assert [message["type"] for message in answer.sent] == ["http.response.start", "http.response.body"]


async def test_the_answer_to_a_longer_command_begins_after_the_wait() -> None:
    answer = Answer(
        ResultsUpdate([_result(0)]),
        ResultsUpdate([]),
        ResultsUpdate([_result(1)]),
        ResultsUpdate([], _ended()),
        opens=_later(HOUR),
    )
    lines = await answer.run()
    assert [line.get("offset") for line in lines] == [None, 0, 1, None], "no line that says nothing"
    assert answer.sent_before == [0, 0, 2, 3], "head, first line and first result go out together"


async def test_without_a_wait_the_answer_begins_at_once() -> None:
    answer = Answer(ResultsUpdate([], _ended()), opens=0.0)
    await answer.run()
    assert answer.sent_before == [2], "head and first line"


async def test_an_answer_too_long_for_one_piece_waits_for_its_time() -> None:
    opens = _later(0.2)
    answer = Answer(ResultsUpdate([_result(0, b"x" * SHORT)], _ended()), opens=opens)
    await answer.run()
    assert asyncio.get_running_loop().time() >= opens - 0.01


async def test_a_failure_before_the_beginning_loses_no_line() -> None:
    answer = Answer(ResultsUpdate([_result(0)]), BusUnavailable("Redis is away"), opens=_later(HOUR))
    lines = await answer.run()
    assert [line.get("offset") for line in lines[:2]] == [None, 0]
    assert lines[2]["error"]["code"] == "bus_unavailable"


async def test_an_answer_without_results_is_held_back_for_a_command_that_ends_soon() -> None:
    """It may begin already, and there is nothing to tell but its id: the end is the first update."""
    fleet = cast(FleetStore, SimpleNamespace(store=None, directory=None, records=None, gate=None))
    followers = Followers()
    reader = ResultReader(fleet, cast(Inbox, None), followers, cast(Membership, SimpleNamespace(lease="node-1#1")))
    follower, loop = followers.join("c"), asyncio.get_running_loop()
    steps: list[Arg] = ["c", 0, "stdout", b"x", "e", 1, "ok", msgspec.msgpack.encode(StoredEnd(payload=b"1")), ""]
    ended = pack_added("a", steps, AppendResult("ok", "ok", (), 0, 1, 1, 1))
    loop.call_later(results.PATIENCE / 3, followers.tell_results, "c", ended)
    async with asyncio.timeout(20), aclosing(reader.read("c", 0, True, follower, loop.time() + 0.001)) as updates:
        first = await anext(updates)
        assert first.ended is not None
        assert [result.payload for result in first.results] == [b"x"]


async def test_an_answer_without_results_begins_after_a_while() -> None:
    fleet = cast(FleetStore, SimpleNamespace(store=None, directory=None, records=None, gate=None))
    followers = Followers()
    reader = ResultReader(fleet, cast(Inbox, None), followers, cast(Membership, SimpleNamespace(lease="node-1#1")))
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(20), aclosing(reader.read("c", 0, True, followers.join("c"), began + 0.001)) as updates:
        assert await anext(updates) == ResultsUpdate([])
    assert results.PATIENCE <= asyncio.get_running_loop().time() - began < results.POLL_INTERVAL


@pytest.mark.parametrize(("name", "waits"), [("content-length", True), ("transfer-encoding", False)])
async def test_only_a_request_with_content_length_makes_the_answer_wait(name: str, waits: bool) -> None:
    request = Request({"type": "http", "headers": [(name.encode(), b"2")]})
    assert (opening(request) > 0) is waits


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_silent_agent_does_not_delay_the_answer(
    gateway: GatewayProcess, api: GatewayApi, dial: DialAgent, chunked: bool
) -> None:
    """The head and the first line, then what the agent says, however the body was sent."""
    agent = await dial(gateway)
    await agent.greet()
    body = json.dumps({"agent": agent.agent, "method": "work", "deadline": 30}).encode()

    async def pieces() -> AsyncGenerator[bytes]:
        yield body

    headers = {"accept": "application/x-ndjson"}
    async with (
        asyncio.timeout(20),
        api.http.stream("POST", "/v1/commands", content=pieces() if chunked else body, headers=headers) as answer,
    ):
        lines = answer.aiter_lines()
        first = json.loads(await anext(lines))
        command = await agent.command()
        assert first["id"] == command.id
        await agent.send(Ack(id=command.id), End(id=command.id, total=0, payload=b"1"))
        assert json.loads(await anext(lines))["end"]["payload"] == 1


def _ended() -> CommandRecord:
    target = Target("a", TargetState.OK, 1, 0, 1, StoredEnd(payload=b"1"))
    return CommandRecord("c", "a", CommandOrigin("work", "", 0, 0), "interactive", 0, 0, 0, False, 0, False, [target])


class SlowRecords:
    """One result; whoever reads again is answered when the loop's time is `opens`, and finds nothing new."""

    def __init__(self, opens: float) -> None:
        self.opens = opens
        self.reads = 0

    async def read(self, command: str, offset: int, *_: object) -> ResultPage:
        self.reads += 1
        if offset == 0:
            return ResultPage(1, [_result(0)], None, -1)
        await asyncio.sleep(self.opens - asyncio.get_running_loop().time())
        return ResultPage(1, [], None, -1)


async def test_a_result_is_not_held_back_beyond_the_opening_by_news_without_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second doorbell for one result, such as that of an acknowledgement, is read while the answer may not begin
    yet; by the time it was read, it may."""
    monkeypatch.setattr(results, "POLL_INTERVAL", HOUR)
    opens = _later(0.2)
    records, followers = SlowRecords(opens), Followers()
    gate = FailoverGate(lambda _: "", tuple)
    fleet = cast(FleetStore, SimpleNamespace(store=None, directory=None, records=records, gate=gate))
    reader = ResultReader(fleet, cast(Inbox, None), followers, cast(Membership, SimpleNamespace(lease="node-1#1")))
    follower = followers.join("c")
    follower.notify()
    async with asyncio.timeout(20), aclosing(reader.read("c", 0, True, follower, opens)) as updates:
        assert [result.offset for result in (await anext(updates)).results] == [0]
        followers.notify("c")
        assert await anext(updates) == ResultsUpdate([])
    assert records.reads == 2


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_result_of_any_depth_can_be_part_of_an_answer(begin: bytes, end: bytes) -> None:
    """Just below the depth that can be read, one level more is too much: nobody could look up such a command."""
    told = 0
    for depth in range(1, 1_200):
        payload = begin * depth + b"1" + end * depth
        shown, octets = payload_of(StoredEnd(payload=payload))
        LINES.line({"end": {"targets": [{"result": {"payload": shown}}]}})
        told += octets is msgspec.UNSET
        assert octets is msgspec.UNSET or base64.b64decode(str(octets)) == payload
    assert 500 < told < 1_199, "what is nested as programs do it stays JSON"
