"""Log lines of real nodes: JSON with the ids of their subject, one line for each event, and few lines in a storm."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.telemetry.logs import JsonFormatter, LogAggregator, ids
from fairlead.wire.messages import Cmd, End, Error

from support.simulated_fleet import SimulatedFleet
from support.telemetry.node import MakeNode, Node
from support.telemetry.platform_api import PlatformOf
from support.telemetry.scripted_agent import DialLink
from support.waiting import until

pytestmark = pytest.mark.timeout(240)  # of processes that start and stop, on a machine that may do much else

STORM = 10_000


def lines(node: Node) -> list[dict[str, Any]]:
    return [json.loads(line) for line in node.log().splitlines()]


async def test_each_event_is_one_json_line_with_its_ids(
    make_node: MakeNode, platform_of: PlatformOf, dial: DialLink
) -> None:
    node = make_node("told", "--log-format", "json", "--trace-endpoint", "http://127.0.0.1:9", "--trace-ratio", "0")
    agent = await dial(node, "told-1")
    platform = platform_of(node)
    await platform.online("told-1")
    sid = (await platform.get("/v1/agents/told-1"))["link"]["sid"]
    command = await platform.post("told-1", "work")
    failure = Error(code="no_luck", message="none")
    await agent.send(End(id=(await agent.expect(Cmd)).id, total=0, state="error", error=failure))
    await until(lambda: [line for line in lines(node) if line.get("command") == command])
    await agent.close()
    await until(lambda: [line for line in lines(node) if "left" in line["message"]])
    logged = lines(node)
    assert all({"time", "level", "logger", "message"} <= line.keys() and line["node"] == "told" for line in logged)
    (linked,) = [line for line in logged if "linked" in line["message"]]
    assert (linked["agent"], linked["session"]) == ("told-1", sid)
    (failed,) = [line for line in logged if line.get("command") == command]
    assert (failed["agent"], failed["session"], failed["trace"]) == ("told-1", sid, command.replace("-", ""))
    assert "no_luck" in failed["message"]
    (left,) = [line for line in logged if "left" in line["message"]]
    assert (left["agent"], left["session"]) == ("told-1", sid)
    assert "closed by the agent with 1000" in left["message"]


async def test_the_text_format_has_the_same_information(make_node: MakeNode, dial: DialLink) -> None:
    node = make_node("texts")
    await dial(node, "texts-1")
    async with asyncio.timeout(60):
        while not (found := re.search(r"^.* INFO fairlead\.routing agent texts-1 linked, .*$", node.log(), re.M)):
            await asyncio.sleep(0.05)
    assert "{" not in found[0]


async def test_text_of_an_agent_cannot_forge_log_lines(make_node: MakeNode, dial: DialLink) -> None:
    node = make_node("forged")
    agent = await dial(node, "forger-1")
    await agent.socket.close(4999, "over\n2026-01-01 00:00:00,000 INFO fairlead all is well\x1b[2J")
    await until(lambda: "left" in node.log())
    (line,) = [line for line in node.log().splitlines() if "all is well" in line]
    assert "agent forger-1 left: closed by the agent with 4999, over?2026" in line
    assert "\x1b" not in line


async def test_a_storm_of_ten_thousand_reconnects_is_one_line_a_second(make_node: MakeNode) -> None:
    node = make_node("stormy", "--log-format", "json")
    rounds = 10
    began = time.monotonic()
    async with TimerWheel(silence=3600) as timer_wheel:
        fleet = SimulatedFleet(f"{node.link}/v1/link", "development-agent-token", timer_wheel)
        for _ in range(rounds):
            await fleet.join(STORM // rounds, prefix="storm")
            await fleet.leave()
    seconds = time.monotonic() - began
    await until(lambda: _sum(node, "agents linked", "linked,") >= STORM and _sum(node, "agents left", "left:") >= STORM)
    assert (_sum(node, "agents linked", "linked,"), _sum(node, "agents left", "left:")) == (STORM, STORM)
    # Each of the two kinds: a line at once whenever it begins anew, and one a second.
    logged = [line for line in lines(node) if line["logger"] == "fairlead.routing"]
    assert len(logged) <= 2 * (2 * rounds + seconds + 2)
    for kind in ("agents linked", "agents left"):
        at = [line["time"] for line in logged if line.get("event") == kind]
        assert len(at) <= seconds + 2
    others = [line["message"] for line in lines(node) if line["logger"] != "fairlead.routing"]
    assert len(others) < 20, others[:20]


def _sum(node: Node, event: str, single: str) -> int:
    """The number of events of a kind that the log has reported."""
    logged = lines(node)
    singles = [line for line in logged if line["message"].startswith("agent ") and single in line["message"]]
    return len(singles) + sum(int(line["count"]) for line in logged if line.get("event") == event)


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.logged: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert "\n" not in line
        self.logged.append(json.loads(line))


@pytest.fixture
def kept() -> Iterator[tuple[logging.Logger, Kept]]:
    logger, handler = logging.getLogger("test.logs"), Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield logger, handler
    logger.removeHandler(handler)


def test_an_exception_stays_in_its_line(kept: tuple[logging.Logger, Kept]) -> None:
    logger, handler = kept
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed for %s", "web-1", extra=ids(agent="web-1", command="c", session=""))
    (line,) = handler.logged
    assert (line["message"], line["agent"], line["command"], line["level"]) == (
        "failed for web-1",
        "web-1",
        "c",
        "error",
    )
    assert "session" not in line
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: two\nlines")


async def test_an_aggregator_logs_the_first_event_at_once_and_counts_the_rest(
    kept: tuple[logging.Logger, Kept],
) -> None:
    logger, handler = kept
    digest = LogAggregator(logger)
    for n in range(50):
        digest.note("agents left", str(n), logging.INFO, "agent %d left", n, agent=f"a{n}")
    digest.note("agents linked", "new", logging.INFO, "agent %d linked", 1, agent="a1")
    assert [line["message"] for line in handler.logged] == ["agent 0 left", "agent 1 linked"]
    await until(lambda: len(handler.logged) >= 3)
    summary = handler.logged[2]
    assert (summary["event"], summary["count"]) == ("agents left", 49)
    assert "29 other" in summary["message"], "details are bounded"
    digest.note(
        "agents left", "1", logging.INFO, "agent %d left", 50
    )  # its second is not over: counted, and told at the end
    digest.aclose()
    assert [line.get("count") for line in handler.logged[3:]] == [1]
    logger.setLevel(logging.WARNING)
    for n in range(3):
        digest.note("connections closed", "one", logging.WARNING, "connection %d closed", n)
    digest.aclose()
    assert [(line["level"], line.get("count")) for line in handler.logged[4:]] == [("warning", None), ("warning", 2)]
    assert sys.getsizeof(digest) < 1000
