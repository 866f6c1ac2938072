"""Nothing of a link, a command or a request waits for the garbage collector of a node, however the link is carried.

A collector that has nothing to do may look at as little as it likes: `fairlead.garbage_collector` relies on that.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from fairlead.carrier.client import connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.errors import ConnectionRefused
from fairlead.settings import DEVELOPMENT_AGENT_TOKEN
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import Bye, Event, Hb

from support.carrier.listeners import RecordingListener
from support.carrier.tls_site import make_certificate
from support.gateway.garbage_reporter import GarbageReports
from support.gateway.metrics import metric
from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.simulated_fleet import CODEC, SimulatedFleet
from support.waiting import until

pytestmark = pytest.mark.timeout(300)  # a busy machine may take long for some hundred requests

FEW, MANY = 5, 35
"""Agents of a round. With so many more of them there is no more garbage than with few."""


@pytest.fixture(params=["accepted directly", "through the application", "on transports", "over TLS"])
def carried(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[tuple[str, ...], str, ssl.SSLContext | None]:
    """The flags of a node, the path of its links, and the trust of its agents."""
    if request.param == "over TLS":
        certificate, key = make_certificate(tmp_path, "localhost")
        trust = ssl.create_default_context(cafile=str(certificate))
        trust.check_hostname = False
        return (f"--link-tls-cert={certificate}", f"--link-tls-key={key}"), "/v1/link", trust
    if request.param == "on transports":
        return ("--link-transport", "asyncio"), "/v1/link", None
    return (), "/v1/link" + "?" * (request.param == "through the application"), None


class Rounds:
    """Agents of one node that come, work and go."""

    def __init__(self, gateway: GatewayProcess, api: GatewayApi, path: str, trust: ssl.SSLContext | None) -> None:
        self._gateway, self._api, self._trust = gateway, api, trust
        self._url = (gateway.link.replace("ws:", "wss:") if trust else gateway.link) + path

    async def play(self, count: int) -> None:
        async with TimerWheel(silence=3600) as timer_wheel:
            fleet = SimulatedFleet(self._url, DEVELOPMENT_AGENT_TOKEN, timer_wheel, self._trust)
            await fleet.join(count, at_once=8)
            await asyncio.gather(*(self._work(fleet, number) for number in range(count)))
            await asyncio.gather(*(self._be_refused(timer_wheel) for _ in range(count)))
            for number, agent in enumerate(fleet.agents):
                assert agent.connection is not None
                if number % 3 == 0:
                    agent.connection.send(CODEC.encode(Bye(code=1000, why="test")))
                elif number % 3 == 1:
                    agent.connection.abort()
            await fleet.leave()
        await until(self._is_empty)

    async def _work(self, fleet: SimulatedFleet, number: int) -> None:
        agent, api = fleet.agents[number], self._api
        assert agent.connection is not None
        agent.connection.send(CODEC.encode(Hb(ts=time.monotonic_ns() // 1000, rtt=1.5)))
        agent.connection.send(CODEC.encode(Event(id=f"event-{number}", type="test", payload=b"{}")))
        command = await api.start(agent.name)
        assert (await api.end(command))["state"] == "ok"
        assert (await api.http.get(f"/v1/agents/{agent.name}")).status_code == 200
        assert (await api.post({"agent": f"nobody-{number}", "method": "work"})).status_code == 404
        assert (await api.post({"method": "work"})).status_code == 422
        wrong = {"agent": agent.name, "method": "exec", "payload": {"argv": 5, "number": number}}
        assert (await api.post(wrong)).status_code == 422

    async def _be_refused(self, timer_wheel: TimerWheel) -> None:
        with pytest.raises(ConnectionRefused):
            await connect(self._url, RecordingListener(), timer_wheel=timer_wheel, ssl=self._trust)

    async def _is_empty(self) -> bool:
        return not await metric(self._gateway, "fairlead_links")


async def test_links_commands_and_requests_leave_nothing_to_the_collector(
    valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    tmp_path: Path,
    carried: tuple[tuple[str, ...], str, ssl.SSLContext | None],
) -> None:
    flags, path, trust = carried
    reports = GarbageReports(tmp_path)
    gateway = make_gateway(valkey.url, *flags, within=reports.within)
    rounds = Rounds(gateway, api_of(gateway), path, trust)
    await rounds.play(FEW)
    await reports.next(gateway)  # what the start and the first of everything have left
    await rounds.play(FEW)
    few = await reports.next(gateway)
    await rounds.play(MANY)
    many = await reports.next(gateway)
    more = {kind: count - few.get(kind, 0) for kind, count in many.items()}
    assert {kind: count for kind, count in more.items() if count >= MANY - FEW} == {}
