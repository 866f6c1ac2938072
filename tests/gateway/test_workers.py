"""`serve --workers 2` on a real Valkey: two nodes behind one port, restarted when they die, drained as one."""

from __future__ import annotations

import asyncio
import collections
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.agent import Agent
from fairlead.carrier.http_server.uvicorn_server import SAME_STOP
from fairlead.cli.workers.metrics_merge import merge_metrics
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.plain_http import plain_client
from support.waiting import until

AGENTS = 20
PLATFORM = {"authorization": "Bearer development-platform-token"}
FLAGS = ("--workers", "2", "--drain-timeout", "5", "--hello-timeout", "1")

StartAgents = Callable[[GatewayProcess], list[Agent]]


@pytest.fixture
async def start_agents() -> AsyncIterator[StartAgents]:
    """Twenty SDK agents that answer `whoami` and reconnect when they lose their link."""
    agents: list[Agent] = []
    serving: list[asyncio.Future[None]] = []

    def start(gateway: GatewayProcess) -> list[Agent]:
        for n in range(AGENTS):
            agent = Agent(gateway.link, f"agent-{n}", "development-agent-token")

            @agent.command("whoami")
            async def whoami(me: str) -> str:
                return me

            agents.append(agent)
            serving.append(asyncio.ensure_future(agent.serve()))
        return agents

    yield start
    for agent in agents:
        agent.stop()
    await asyncio.wait_for(asyncio.gather(*serving, return_exceptions=True), 20)


async def nodes(api: GatewayApi) -> dict[str, str]:
    """The node of each agent that is online."""
    rows = (await api.http.get("/v1/agents?limit=500")).json()["agents"]
    return {row["id"]: row["node"] for row in rows if row["state"] == "online"}


async def all_online(api: GatewayApi) -> bool:
    return len(await nodes(api)) == AGENTS


async def metric(gateway: GatewayProcess, name: str, **labels: str) -> dict[str, float]:
    """The samples `name` of the merged exposition, by worker."""
    async with plain_client() as http:
        text = (await http.get(f"{gateway.admin}/metrics")).text
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families), "a family stands there twice"
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {s.labels["worker"]: s.value for s in samples if labels.items() <= s.labels.items()}


async def ready(gateway: GatewayProcess) -> tuple[int, str]:
    async with plain_client() as http:
        answer = await http.get(f"{gateway.admin}/readyz")
    return answer.status_code, answer.text


async def pid_of(gateway: GatewayProcess, node: str) -> int:
    found = re.search(rf"^{node} \(pid (\d+)\)", (await ready(gateway))[1], re.M)
    assert found is not None
    return int(found[1])


async def whoami_through_a_new_connection(gateway: GatewayProcess, agent: str) -> None:
    """Call `whoami` over a new connection, which may reach any worker."""
    async with plain_client(base_url=gateway.api, headers=PLATFORM, timeout=30) as http:
        body = {"agent": agent, "method": "whoami", "payload": {"me": agent}}
        command = (await http.post("/v1/commands", json=body)).json()["id"]
    async with plain_client(base_url=gateway.api, headers=PLATFORM, timeout=30) as http:
        followed = await http.get(f"/v1/commands/{command}/results?follow=true")
        row = (await http.get(f"/v1/commands/{command}")).json()
    assert row["state"] == "ok", (followed.status_code, followed.text, row)


def family(gateway: GatewayProcess) -> list[psutil.Process]:
    return list(psutil.Process(gateway.pid).children(recursive=True))


async def gone(processes: list[psutil.Process]) -> bool:
    return not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


async def test_workers_are_separate_nodes_and_any_serves_any_agent(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    start_agents: StartAgents,
) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS)
    assert "2 workers are ready" in gateway.log()
    api = api_of(gateway)
    agents = start_agents(gateway)
    await until(lambda: all_online(api))
    count = collections.Counter((await nodes(api)).values())
    assert set(count) == {"node-1-0", "node-1-1"}, "twenty links all on one of two workers: one run in 500,000"
    expected = {"0": float(count["node-1-0"]), "1": float(count["node-1-1"])}
    assert await metric(gateway, "fairlead_agents") == expected
    assert await metric(gateway, "fairlead_worker_up") == {"0": 1.0, "1": 1.0}
    assert await metric(gateway, "fairlead_worker_restarts_total") == {"0": 0.0, "1": 0.0}
    await asyncio.gather(*(whoami_through_a_new_connection(gateway, agent.id) for agent in agents))
    accepted = await metric(gateway, "fairlead_commands_accepted_total")
    assert sum(accepted.values()) == AGENTS
    assert all(accepted.values()), "both workers took commands, for the agents of both"


@pytest.mark.timeout(120)
async def test_a_killed_worker_is_restarted_and_its_agents_come_back(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    start_agents: StartAgents,
) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS)
    api = api_of(gateway)
    agents = start_agents(gateway)
    await until(lambda: all_online(api))
    victim = await pid_of(gateway, "node-1-1")
    os.kill(victim, signal.SIGKILL)

    async def restarted() -> bool:
        return (await metric(gateway, "fairlead_worker_restarts_total"))["1"] == 1

    await until(restarted)

    async def both_ready() -> bool:
        return (await ready(gateway))[1].count(": ok") == 2

    await until(both_ready)
    assert await pid_of(gateway, "node-1-1") != victim
    # A new client: the connection of the old one may have been to the worker that was killed.
    await until(lambda: all_online(api_of(gateway)))
    await asyncio.gather(*(whoami_through_a_new_connection(gateway, agent.id) for agent in agents))
    assert await metric(gateway, "fairlead_worker_restarts_total") == {"0": 0.0, "1": 1.0}
    assert "worker node-1-1 ended by signal 9" in gateway.log()


async def test_a_frozen_worker_is_reported_as_missing(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS)
    frozen = await pid_of(gateway, "node-1-0")
    os.kill(frozen, signal.SIGSTOP)
    try:
        code, body = await ready(gateway)
        assert (code, body.splitlines()[1]) == (200, f"node-1-0 (pid {frozen}): does not answer")
        assert await metric(gateway, "fairlead_worker_up") == {"0": 0.0, "1": 1.0}
        assert await metric(gateway, "fairlead_agents") == {"1": 0.0}
        other = await pid_of(gateway, "node-1-1")
        os.kill(other, signal.SIGSTOP)
        code, body = await ready(gateway)
        os.kill(other, signal.SIGCONT)
        assert (code, body.count("does not answer")) == (503, 2)
    finally:
        os.kill(frozen, signal.SIGCONT)

    async def both_ready() -> bool:
        return (await ready(gateway))[1].count(": ok") == 2

    await until(both_ready)


async def test_livez_reports_the_supervisor(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS)

    async def livez() -> int:
        async with plain_client() as http:
            return (await http.get(f"{gateway.admin}/livez")).status_code

    assert await livez() == 200
    gateway.signal(signal.SIGSTOP)

    async def stuck() -> bool:
        return await livez() == 503

    await until(stuck)
    gateway.signal(signal.SIGCONT)

    async def turns() -> bool:
        return await livez() == 200

    await until(turns)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_all_workers(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    start_agents: StartAgents,
    number: signal.Signals,
) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS)
    start_agents(gateway)
    await until(lambda: all_online(api_of(gateway)))
    processes = family(gateway)
    assert len(processes) == 3, "two workers, and the process of the admin port"
    gateway.signal(number)
    assert await asyncio.to_thread(gateway.wait) == 0, gateway.log()
    drained = [int(count) for count in re.findall(r"drained (\d+) agents", gateway.log())]
    assert (len(drained), sum(drained)) == (2, AGENTS)
    assert await gone(processes)


async def test_a_signal_to_the_process_group_drains(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    start_agents: StartAgents,
) -> None:
    """As systemd stops a service (`KillMode=control-group`, its default): a signal to the supervisor and to each child,
    which the supervisor signals as well. And as Ctrl-C under a wrapper: to the process group, and again from the
    wrapper.
    """
    gateway = make_gateway(own_valkey.url, *FLAGS, within=("setsid",))
    start_agents(gateway)
    await until(lambda: all_online(api_of(gateway)))
    processes = family(gateway)
    for number in (signal.SIGTERM, signal.SIGINT):
        for group in {os.getpgid(pid) for pid in (gateway.pid, *(one.pid for one in processes))}:
            os.killpg(group, number)
    assert await asyncio.to_thread(gateway.wait) == 0, gateway.log()
    drained = [int(count) for count in re.findall(r"drained (\d+) agents", gateway.log())]
    assert (len(drained), sum(drained)) == (2, AGENTS), gateway.log()
    assert "the admin port ended" not in gateway.log(), "it says who still drains until the last has ended"
    assert await gone(processes)


async def test_a_second_signal_kills_all_workers(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent
) -> None:
    gateway = make_gateway(own_valkey.url, "--workers", "2", "--drain-timeout", "600", "--drain-rate", "0.1")
    processes = family(gateway)
    peers = [await dial(gateway) for _ in range(8)]
    await asyncio.gather(*(peer.greet() for peer in peers))
    gateway.signal(signal.SIGTERM)

    async def draining() -> bool:
        return (await ready(gateway))[1].count("draining") > 0

    await until(draining)
    await asyncio.sleep(SAME_STOP)  # what comes before belongs to the first
    gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait) == 1
    assert await gone(processes)


async def test_workers_do_not_outlive_their_supervisor(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS)
    processes = family(gateway)
    gateway.signal(signal.SIGKILL)
    await asyncio.to_thread(gateway.wait)
    await until(lambda: gone(processes))
    assert gateway.log().count("drained 0 agents") == 2, "they drained, as SIGTERM would have it"
    found = re.search(r"admin on (/\S+)/0\.sock", gateway.log())
    assert found is not None
    assert not Path(found[1]).exists()
    gateway.start()  # on the same ports: nobody holds them any more


async def test_the_admin_port_is_restarted_too(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS)
    workers = {await pid_of(gateway, "node-1-0"), await pid_of(gateway, "node-1-1")}
    (admin,) = (one for one in family(gateway) if one.pid not in workers)
    admin.kill()
    # The port is kept meanwhile: the probe waits a moment and is answered.
    assert (await ready(gateway))[0] == 200
    assert "the admin port ended by signal 9" in gateway.log()


async def test_workers_share_the_embedded_valkey(make_gateway: MakeGateway) -> None:
    gateway = make_gateway("embedded", *FLAGS)
    processes = family(gateway)
    assert len(processes) == 4
    assert await metric(gateway, "fairlead_redis_up") == {"0": 1.0, "1": 1.0}
    gateway.signal(signal.SIGTERM)
    assert await asyncio.to_thread(gateway.wait) == 0, gateway.log()
    assert await gone(processes)


def refused(*flags: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "serve", "--redis", "redis://127.0.0.1:1", *flags],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    text = done.stderr.decode()
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_taken_port_is_reported_at_once(workers: str) -> None:
    flags = {"link-port": "0", "api-port": "0", "admin-port": "0"}
    for name in flags:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            # It would share the port if it were asked to: another gateway's worker would.
            port = str(taken.getsockname()[1])
            text = refused("--workers", workers, *(f"--{key}={port if key == name else 0}" for key in flags))
        purpose = name.removesuffix("-port")
        assert f"cannot use {purpose} port {port} on 127.0.0.1: Address already in use" in text
        assert f"--{name}" in text
        assert "Redis" not in text, "the node must not have waited for Redis"


async def test_the_ports_of_another_gateways_workers_count_as_taken(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway
) -> None:
    gateway = make_gateway(own_valkey.url, *FLAGS)
    port = gateway.link.rpartition(":")[2]
    text = refused("--workers", "2", "--link-port", port, "--api-port", "0", "--admin-port", "0")
    assert f"link port {port}" in text


@pytest.mark.parametrize("workers", ["0", "65", "two"])
def test_workers_out_of_bounds_are_refused(workers: str) -> None:
    text = refused("--workers", workers)
    assert "a whole number from 1 to 64" in text
    assert "--workers" in text


def test_merged_metrics_keep_values_and_escaped_labels() -> None:
    """When parsed again, each sample has its worker's value, and nothing else has changed."""
    texts = {}
    labels = ['plain"quote', "back\\slash", "new\nline", "brace}{ ", "separator\u2028\x0b", ""]
    for worker in (0, 1, 11):
        registry = CollectorRegistry()
        counter = Counter("counted", 'Says "so"\nin two lines', ["label"], registry=registry)
        for n, label in enumerate(labels):
            counter.labels(label).inc(worker * 100 + n)
        histogram = Histogram("seconds", "No labels", buckets=(1, 2), registry=registry)
        histogram.observe(worker)
        if worker == 1:
            Counter("alone", "Of one worker", registry=registry).inc()
        texts[worker] = generate_latest(registry).decode()
    merged = merge_metrics(texts)
    assert merged.count("# TYPE counted_total counter") == 1
    assert merged.count("# HELP seconds No labels") == 1
    found = {}
    for one in text_string_to_metric_families(merged):
        for sample in one.samples:
            own = dict(sample.labels)
            found[int(own.pop("worker")), sample.name, tuple(own.items())] = sample.value
    expected = {
        (worker, sample.name, tuple(sample.labels.items())): sample.value
        for worker, text in texts.items()
        for one in text_string_to_metric_families(text)
        for sample in one.samples
    }
    assert found == expected
    assert found[11, "counted_total", (("label", "brace}{ "),)] == 1103
