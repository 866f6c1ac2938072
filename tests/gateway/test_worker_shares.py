"""`serve --workers`: how links are shared among workers that accept from one socket, of which some die or stop."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator

import pytest

from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import AGENT_TOKEN
from support.plain_http import plain_client
from support.simulated_fleet import SimulatedFleet
from support.waiting import until

WORKERS = 3
FLAGS = ("--workers", str(WORKERS), "--drain-timeout", "5", "--accept-rate", "10000")
SLACK = 6
"""Links by which workers may differ at these numbers: the rule's slack of 4, and plain requests that had just ended."""


@pytest.fixture
async def timer_wheel() -> AsyncIterator[TimerWheel]:
    async with TimerWheel(silence=600.0) as ticking:
        yield ticking


@pytest.fixture
def gateway(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> GatewayProcess:
    return make_gateway(own_valkey.url, *FLAGS)


def fleet_of(gateway: GatewayProcess, timer_wheel: TimerWheel) -> SimulatedFleet:
    return SimulatedFleet(f"{gateway.link}/v1/link", AGENT_TOKEN, timer_wheel)


async def links(gateway: GatewayProcess) -> dict[int, int]:
    """The links of each worker that answers."""
    async with plain_client() as http:
        text = (await http.get(f"{gateway.admin}/metrics")).text
    return {
        int(n): int(float(count)) for n, count in re.findall(r'^fairlead_links\{worker="(\d)"\} (\S+)$', text, re.M)
    }


async def pids(gateway: GatewayProcess) -> dict[int, int]:
    """The process of each worker that is ready."""
    async with plain_client() as http:
        text = (await http.get(f"{gateway.admin}/readyz")).text
    return {int(n): int(pid) for n, pid in re.findall(r"^node-1-(\d) \(pid (\d+)\): ok$", text, re.M)}


async def all_ready(gateway: GatewayProcess) -> bool:
    return len(await pids(gateway)) == WORKERS


async def become_even(gateway: GatewayProcess, fleet: SimulatedFleet, workers: int = WORKERS) -> None:
    """Workers are even, or become so with the next links: one that got no CPU time for 50 ms was passed over."""
    for _ in range(10):
        counts = (await links(gateway)).values()
        assert len(counts) == workers
        if max(counts) - min(counts) <= SLACK:
            return
        await fleet.join(30, prefix="more")
    raise AssertionError(f"the links of the workers stay uneven: {counts}")


async def join_slowly(fleet: SimulatedFleet, count: int) -> None:
    """One link after the other: each wakes all workers that wait."""
    await fleet.join(count, at_once=1, prefix="slow")


async def test_links_are_even_when_they_come_at_once_and_one_by_one(
    gateway: GatewayProcess, timer_wheel: TimerWheel
) -> None:
    fleet = fleet_of(gateway, timer_wheel)
    await fleet.join(300)
    assert sum((await links(gateway)).values()) == 300
    await become_even(gateway, fleet)
    await join_slowly(fleet, 60)
    await become_even(gateway, fleet)
    await fleet.leave()


async def test_links_are_even_again_after_a_worker_was_killed(gateway: GatewayProcess, timer_wheel: TimerWheel) -> None:
    fleet = fleet_of(gateway, timer_wheel)
    await fleet.join(300)
    victim = (await pids(gateway))[0]
    os.kill(victim, signal.SIGKILL)
    await until(lambda: fleet.linked < 300)
    await until(lambda: all_ready(gateway))
    assert (await pids(gateway))[0] != victim
    await fleet.join(300 - fleet.linked, prefix="again")
    assert sum((await links(gateway)).values()) == 300
    await become_even(gateway, fleet)
    await fleet.leave()


async def test_a_frozen_worker_delays_no_link_for_long(gateway: GatewayProcess, timer_wheel: TimerWheel) -> None:
    """It has the fewest links, so each of the others would leave new ones to it."""
    fleet = fleet_of(gateway, timer_wheel)
    frozen = (await pids(gateway))[1]
    await fleet.join(30)
    before = (await links(gateway))[1]
    os.kill(frozen, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            await fleet.join(200)
            await join_slowly(fleet, 20)
        others = await links(gateway)
        assert sorted(others) == [0, 2]
        assert sum(others.values()) == 250 - before
        await become_even(gateway, fleet, WORKERS - 1)
    finally:
        os.kill(frozen, signal.SIGCONT)
    await until(lambda: all_ready(gateway))
    await fleet.join(60)
    assert (await links(gateway))[1] > before + 20, "a third of 60 is what chance would give it"
    await fleet.leave()


async def test_what_waits_in_the_kernel_outlives_the_workers(gateway: GatewayProcess) -> None:
    """Connections that came while no worker ran are served by those that are started in their place."""
    victims = await pids(gateway)
    for pid in victims.values():
        os.kill(pid, signal.SIGSTOP)
    host, _, port = gateway.link.removeprefix("ws://").rpartition(":")
    waiting = [socket.create_connection((host, int(port)), 5) for _ in range(40)]
    try:
        for one in waiting:
            one.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for pid in victims.values():
            os.kill(pid, signal.SIGKILL)
        for one in waiting:
            one.settimeout(30)
            assert (await asyncio.to_thread(one.recv, 100)).startswith(b"HTTP/1.1 404")
    finally:
        for one in waiting:
            one.close()
    await until(lambda: all_ready(gateway))
    assert not set((await pids(gateway)).values()) & set(victims.values())


async def test_one_worker_that_drains_leaves_new_links_to_the_others(
    gateway: GatewayProcess, timer_wheel: TimerWheel
) -> None:
    fleet = fleet_of(gateway, timer_wheel)
    await fleet.join(30)
    os.kill((await pids(gateway))[2], signal.SIGTERM)
    await until(lambda: "draining" in gateway.log() or fleet.linked < 30)
    await fleet.join(100, prefix="meanwhile")  # raises if one was refused
    await fleet.leave()
    gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait) == 0


async def test_the_port_is_closed_when_all_workers_have_ended(gateway: GatewayProcess) -> None:
    host, _, port = gateway.link.removeprefix("ws://").rpartition(":")
    gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)


async def test_links_on_the_event_loops_transports_have_sockets_of_their_own(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, timer_wheel: TimerWheel
) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS, "--link-transport", "asyncio")
    fleet = fleet_of(gateway, timer_wheel)
    await fleet.join(60)
    assert sum((await links(gateway)).values()) == 60
    await fleet.leave()
