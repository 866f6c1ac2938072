"""Commands and links as traces, exported by real nodes and a real agent to a real OTLP/HTTP receiver."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.otlp_collector import Collector, Span, tree
from support.telemetry.node import MakeNode
from support.telemetry.platform_api import Platform, PlatformOf
from support.waiting import until

pytestmark = pytest.mark.timeout(240)  # of processes that start and stop, on a machine that may do much else

Start = Callable[[Any, str, Collector], Awaitable[None]]

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ALL = ("--trace-ratio", "1")
NONE = ("--trace-ratio", "0")
STAY = {"doorbell", "deliver", "agent", "end"}


def children(spans: list[Span], of: Span) -> set[str]:
    return {span.name for span in spans if span.parent == of.id}


def only(spans: list[Span], name: str) -> Span:
    found = [span for span in spans if span.name == name]
    assert len(found) == 1, [span.name for span in spans]
    return found[0]


async def test_one_command_over_two_nodes_is_one_trace(
    make_node: MakeNode,
    platform_of: PlatformOf,
    start_agent: Start,
    collector: Collector,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caller = make_node("caller", "--trace-endpoint", collector.url, *ALL)
    holder = make_node("holder", "--trace-endpoint", collector.url, *ALL)
    await start_agent(holder, "traced-1", collector)
    platform = platform_of(caller)
    await platform.online("traced-1")
    lines = await platform.run("traced-1", "greet", {"name": "Ada"})
    command = lines[0]["id"]
    trace = command.replace("-", "")
    collector.wait(lambda: len(collector.trace(trace)) >= 11, "spans of the command")
    spans = collector.trace(trace)
    shown = tree(spans)
    with capsys.disabled():
        print(f"\n{shown}")

    root = only(spans, "command greet")
    assert (root.parent, root.kind, root.failed) == ("", "SERVER", False)
    assert root.attributes["fairlead.state"] == "ok"
    assert children(spans, root) == {"api.accept", "api.follow", "doorbell", "deliver", "agent", "end"}
    assert children(spans, only(spans, "api.accept")) == {"dispatch"}
    assert children(spans, only(spans, "agent")) == {"first byte", "run greet"}
    assert children(spans, only(spans, "run greet")) == {"look up"}
    assert only(spans, "agent").events == ["ack"]
    assert only(spans, "api.follow").events == ["first byte"]

    # Who saw what, and in which order: both nodes and the agent share this machine's clock.
    made = {
        span.name: span.resource["service.instance.id"] for span in spans if span.resource["service.name"] == "fairlead"
    }
    assert {name for name, node in made.items() if node == "caller"} == {"api.accept", "dispatch", "api.follow"}
    order = ["api.accept", "dispatch", "doorbell", "deliver", "agent", "run greet", "look up", "end"]
    begins = [only(spans, name).start for name in order]
    assert begins == sorted(begins)
    assert all(root.start <= span.start <= span.end <= root.end + 50_000_000 for span in spans), shown
    assert only(spans, "dispatch").end <= only(spans, "doorbell").end

    # All of it is of one session, and linked to its opening.
    row = (await platform.get("/v1/agents/traced-1"))["link"]["sid"]
    assert {span.attributes.get("session.id") for span in spans if span.name != "look up"} == {row}
    collector.wait(lambda: bool(collector.named("session.open", session__id=row)), "the opening")
    opening = collector.named("session.open", session__id=row)[0]
    ours = [span for span in spans if span.resource["service.name"] == "fairlead"]
    assert {tuple(span.links) for span in ours} == {((opening.trace, opening.id),)}
    phases = [span for span in collector.trace(opening.trace) if span.id != opening.id]
    assert {span.name for span in phases if span.parent == opening.id} == {"handshake", "hello", "claim", "welcome"}
    assert only(phases, "auth").parent == only(phases, "handshake").id


async def test_the_end_of_a_link_is_a_span_with_its_totals(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    node = make_node("closer", "--heartbeat", "1", "--trace-endpoint", collector.url, *ALL)
    await start_agent(node, "closer-1", collector)
    platform = platform_of(node)
    await platform.online("closer-1")
    await platform.run("closer-1", "greet")
    sid = (await platform.get("/v1/agents/closer-1"))["link"]["sid"]

    async with asyncio.timeout(60):
        while not (await platform.get("/v1/agents/closer-1/link"))["rtt"]:
            await asyncio.sleep(0.1)
    assert (await platform.http.delete("/v1/agents/closer-1/link")).status_code == 202
    collector.wait(lambda: bool(collector.named("session.close", session__id=sid)), "the close")
    close = collector.named("session.close", session__id=sid)[0]
    assert close.trace == collector.named("session.open", session__id=sid)[0].trace
    assert close.end - close.start < 1e9, "no span lives as long as a link"
    assert (close.attributes["fairlead.close_code"], close.attributes["fairlead.closed_by"]) == (4004, "gateway")
    assert close.attributes["fairlead.commands"] == 1
    assert float(str(close.attributes["fairlead.duration_s"])) > 1
    p50, p99 = (float(str(close.attributes[f"fairlead.rtt_{share}_ms"])) for share in ("p50", "p99"))
    assert 0 < p50 <= p99 < 1000


async def test_the_callers_decision_is_honoured(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    node = make_node("honest", "--trace-endpoint", collector.url, *NONE)
    other = make_node("honest-too", "--trace-endpoint", collector.url, *ALL)
    await start_agent(node, "honest-1", collector)
    platform = platform_of(node)
    await platform.online("honest-1")
    _, trace, parent, _ = CALLER.split("-")
    await platform.run("honest-1", "greet", traceparent=CALLER)
    collector.wait(lambda: len(collector.trace(trace)) >= 11, "a sampled caller's spans")
    root = only(collector.trace(trace), "command greet")
    assert root.parent == parent
    assert only(collector.trace(trace), "run greet").parent == only(collector.trace(trace), "agent").id

    # Not sampled by the caller, at a node that would draw everything: nothing but the links' own.
    unsampled = f"00-{'ab' * 16}-{'cd' * 8}-00"
    await platform_of(other).run("honest-1", "greet", traceparent=unsampled)
    await platform.run("honest-1", "greet", traceparent=CALLER.replace(trace, "ef" * 16))
    collector.wait(lambda: len(collector.trace("ef" * 16)) >= 11, "the one behind it")
    assert not collector.trace("ab" * 16)


async def test_failed_and_slow_commands_are_kept_without_sampling(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    caller = make_node("kept-a", "--trace-endpoint", collector.url, *NONE, "--trace-slow", "0.5")
    holder = make_node("kept-b", "--trace-endpoint", collector.url, *NONE, "--trace-slow", "0.5")
    await start_agent(holder, "kept-1", collector)
    platform = platform_of(caller)
    await platform.online("kept-1")
    quick = (await platform.run("kept-1", "greet"))[0]["id"].replace("-", "")
    failed = (await platform.run("kept-1", "fail"))[0]["id"].replace("-", "")
    slow = (await platform.run("kept-1", "wait", {"seconds": 0.7}))[0]["id"].replace("-", "")
    silent = (await platform.post("kept-1", "fail")).replace("-", "")  # nobody follows it
    late = (await platform.post("kept-1", "wait", {"seconds": 30}, deadline=0.3)).replace("-", "")
    for trace in (failed, slow):
        collector.wait(lambda trace=trace: len(collector.trace(trace)) >= 8, "a kept command")  # type: ignore[misc]  # bound
        spans = collector.trace(trace)
        root = next(span for span in spans if span.name.startswith("command "))
        assert children(spans, root) >= STAY | {"api.accept", "api.follow"}
    assert only(collector.trace(failed), "command fail").failed
    assert only(collector.trace(failed), "command fail").attributes["error.type"] == "handler_failed"
    assert not only(collector.trace(slow), "command wait").failed
    for trace in (silent, late):
        collector.wait(lambda trace=trace: len(collector.trace(trace)) >= 5, "one that nobody follows")  # type: ignore[misc]
        assert {span.name for span in collector.trace(trace)} >= STAY
    assert only(collector.trace(late), "command wait").attributes["fairlead.state"] == "timeout"
    # The link on which something was worth keeping is told too; the quick command is not.
    collector.wait(lambda: bool(collector.named("session.open", fairlead__agent="kept-1")), "the opening")
    assert not collector.trace(quick)


async def test_a_command_to_an_absent_agent_is_kept(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    node = make_node("absent", "--trace-endpoint", collector.url, *NONE)
    await start_agent(node, "absent-1", collector)
    platform = platform_of(node)
    await platform.online("absent-1")
    row = (await platform.get("/v1/agents/absent-1"))["link"]
    assert row
    command = await platform.post("absent-1", "wait", {"seconds": 60}, deadline=120)
    assert (await platform.http.delete(f"/v1/commands/{command}")).status_code == 202
    # Cancelled is no failure, and nobody drew it.
    refused = await platform.http.post("/v1/commands", json={"agent": "nobody", "method": "x"})
    assert refused.status_code == 404
    failing = (await platform.post("absent-1", "fail")).replace("-", "")
    collector.wait(lambda: bool(collector.trace(failing)), "the failed one behind them")
    assert not collector.trace(command.replace("-", ""))
    assert not [span for span in collector.spans if span.attributes.get("fairlead.agent") == "nobody"]


async def test_a_command_that_changes_its_link_stays_one_trace(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    node = make_node("moved", "--trace-endpoint", collector.url, *NONE)
    await start_agent(node, "moved-1", collector)
    platform = platform_of(node)
    await platform.online("moved-1")
    trace, parent = CALLER.split("-")[1:3]
    running = asyncio.create_task(platform.run("moved-1", "wait", {"seconds": 3}, traceparent=CALLER))
    async with asyncio.timeout(60):
        while not (await platform.get("/v1/agents/moved-1/link"))["commands"]:
            await asyncio.sleep(0.05)
    first = (await platform.get("/v1/agents/moved-1"))["link"]["sid"]
    assert (await platform.http.delete("/v1/agents/moved-1/link")).status_code == 202
    assert (await running)[-1]["end"]["state"] == "ok"
    second = (await platform.get("/v1/agents/moved-1"))["link"]["sid"]
    assert first != second
    collector.wait(lambda: bool(collector.named("command wait")), "the whole command")
    spans = collector.trace(trace)
    root = only(spans, "command wait")
    assert (root.parent, root.attributes["session.id"]) == (parent, second)
    lost, last = sorted((span for span in spans if span.name == "agent"), key=lambda span: span.start)
    assert (lost.attributes["session.id"], lost.message) == (first, "link lost")
    assert (last.attributes["session.id"], last.failed) == (second, False)
    assert only(spans, "run wait").parent == lost.id, "the handler began under the first link"
    assert len([span for span in spans if span.name == "deliver"]) == 1


async def test_a_dead_collector_loses_spans_and_nothing_else(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    with socket.socket() as mute:  # takes connections, and never answers
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        dead = f"http://127.0.0.1:{mute.getsockname()[1]}"
        node = make_node("mourner", "--trace-endpoint", dead, *ALL)
        await start_agent(node, "mourner-1", collector)
        platform = platform_of(node)
        await platform.online("mourner-1")
        for _ in range(20):
            assert (await platform.run("mourner-1", "greet"))[-1]["end"]["state"] == "ok"
        began = time.monotonic()
        # Far more than the queue holds.
        await asyncio.gather(*(flood(platform, 250) for _ in range(8)))
        took = time.monotonic() - began
        assert took < 60, "the loop waited for the collector"
        assert node.metric("fairlead_spans_waiting") <= 8192
        await until(lambda: node.metric("fairlead_spans_dropped_total"))
        assert node.metric("fairlead_spans_exported_total") == 0
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 12, "stopping waits for the collector for some seconds at most"
    assert node.log().count("accepts no spans") == 1, node.log()


async def flood(platform: Platform, count: int) -> None:
    for _ in range(count):
        # A refused post is two spans when it is drawn.
        answer = await platform.http.post("/v1/commands", json={"agent": "nobody", "method": "x"})
        assert answer.status_code == 404


async def test_without_a_collector_no_spans_are_made(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    node = make_node("plain", *ALL)
    await start_agent(node, "plain-1", collector)
    platform = platform_of(node)
    await platform.online("plain-1")
    assert (await platform.run("plain-1", "greet"))[-1]["end"]["state"] == "ok"
    # protobuf's compiled part is mapped into each process that has loaded an exporter.
    assert "_upb" not in Path(f"/proc/{node.pid}/maps").read_text(), "OpenTelemetry was loaded for nothing"
    # A caller's context goes through to the agent all the same.
    await platform.run("plain-1", "greet", traceparent=CALLER)
    trace, parent = CALLER.split("-")[1:3]
    collector.wait(lambda: len(collector.trace(trace)) == 2, "the agent's own spans")
    assert only(collector.trace(trace), "run greet").parent == parent


async def test_handlers_in_threads_are_in_the_trace_too(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    node = make_node("threads", "--trace-endpoint", collector.url, *ALL)
    await start_agent(node, "threads-1", collector)
    platform = platform_of(node)
    await platform.online("threads-1")
    trace = (await platform.run("threads-1", "blocking"))[0]["id"].replace("-", "")
    collector.wait(lambda: {"run blocking", "block"} <= {s.name for s in collector.trace(trace)}, "the thread's span")
    assert only(collector.trace(trace), "block").parent == only(collector.trace(trace), "run blocking").id


async def test_spans_and_metrics_agree_on_what_was_exported(
    make_node: MakeNode, platform_of: PlatformOf, start_agent: Start, collector: Collector
) -> None:
    node = make_node("counted", "--trace-endpoint", collector.url, *ALL)
    await start_agent(node, "counted-1", collector)
    platform = platform_of(node)
    await platform.online("counted-1")
    for _ in range(5):
        await platform.run("counted-1", "greet")
    assert node.stop() == 0  # what waits is sent first
    ours = [span for span in collector.spans if span.resource["service.name"] == "fairlead"]
    assert len({span.trace for span in ours if span.name == "command greet"}) == 5
    assert len(collector.named("session.close", fairlead__agent="counted-1")) == 1
