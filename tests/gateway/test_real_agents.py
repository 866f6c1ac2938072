"""The shipped agent as a process against a real node: what users do, and what happens to their machines."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fairlead.agent import Agent
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway.platform_api import GatewayApi, MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.waiting import until

StartAgent = Callable[[GatewayProcess, str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    """`fairlead agent run` as a process."""
    started: list[subprocess.Popen[bytes]] = []

    def start(gateway: GatewayProcess, name: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "agent", "run", "--url", gateway.link, "--id", name],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def online(api: GatewayApi, agent: str) -> bool:
    answer = await api.http.get(f"/v1/agents/{agent}")
    return bool(answer.status_code == 200 and answer.json()["state"] == "online")


async def run_cli(gateway: GatewayProcess, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", *arguments, "--api", gateway.api,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(stdin), 40)
    assert process.returncode is not None
    return process.returncode, out, err


async def cli_exec(gateway: GatewayProcess, agent: str, *argv: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "exec", "--api", gateway.api, agent, "--", *argv,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(stdin), 40)
    assert process.returncode is not None
    return process.returncode, out, err


async def test_exec_works_from_the_command_line(
    gateway: GatewayProcess, api: GatewayApi, start_agent: StartAgent
) -> None:
    start_agent(gateway, "host-1")
    await until(lambda: online(api, "host-1"))
    code, out, err = await cli_exec(gateway, "host-1", "sh", "-c", "echo out; echo err >&2; cat; exit 7", stdin=b"in\n")
    assert (code, out, err) == (7, b"out\nin\n", b"err\n")
    code, out, _ = await cli_exec(
        gateway, "host-1", "sh", "-c", "head -c 3000000 /dev/urandom | tee /dev/stderr | md5sum >&2"
    )
    assert (code, out) == (0, b"")
    code, out, _ = await cli_exec(gateway, "host-1", "seq", "200000")
    assert (code, out) == (0, b"".join(b"%d\n" % n for n in range(1, 200001)))
    code, _, err = await cli_exec(gateway, "host-9", "true")
    assert code == 2
    assert b"unknown agent 'host-9'" in err
    code, out, _ = await run_cli(gateway, "agents", "ls", "-o", "name")
    assert code == 0
    assert b"host-1" in out.split()


async def test_output_arrives_as_it_is_produced(
    gateway: GatewayProcess, api: GatewayApi, start_agent: StartAgent
) -> None:
    start_agent(gateway, "host-2")
    await until(lambda: online(api, "host-2"))
    fifo_script = "echo one; read line; echo got $line"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "exec", "--api", gateway.api, "host-2", "--", "sh", "-c", fifo_script,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"one\n"  # it has come although the program still runs
        process.stdin.write(b"two\n")
        assert await process.stdout.readline() == b"got two\n"
        process.stdin.close()
        assert await process.wait() == 0


async def test_why_names_the_code_of_what_an_agent_refused(
    gateway: GatewayProcess, api: GatewayApi, start_agent: StartAgent
) -> None:
    start_agent(gateway, "host-choosy")
    await until(lambda: online(api, "host-choosy"))
    command = await api.start("host-choosy", "no.such.method")
    assert (await api.end(command))["error"]["code"] == "unknown_method"

    async def reported() -> bool:
        return bool((await api.agent("host-choosy"))["recent_failures"])

    await until(reported)
    code, out, err = await run_cli(gateway, "why", "host-choosy")
    assert (code, err) == (0, b"")
    assert f"command {command} ended as failed: unknown_method" in out.decode()


async def test_an_agent_killed_during_a_command_never_runs_it_twice(
    gateway: GatewayProcess, api: GatewayApi, start_agent: StartAgent, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    agent = start_agent(gateway, "host-3")
    await until(lambda: online(api, "host-3"))
    payload = {"argv": ["sh", "-c", f"echo run >> {mark}; echo started; sleep 60"]}
    command = await api.start("host-3", "exec", payload=payload, deadline=120)

    async def started() -> bool:
        return bool((await api.get(command))["results"] == 1)

    await until(started)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    start_agent(gateway, "host-3")
    end = await api.end(command)
    assert (end["state"], end["error"]["code"]) == ("failed", "outcome_unknown")
    code, out, _ = await cli_exec(gateway, "host-3", "cat", str(mark))
    assert (code, out) == (0, b"run\n")


async def test_ctrl_c_cancels_on_the_agent(
    gateway: GatewayProcess, api: GatewayApi, start_agent: StartAgent, tmp_path: Path
) -> None:
    start_agent(gateway, "host-4")
    await until(lambda: online(api, "host-4"))
    pid_file = tmp_path / "pid"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fairlead", "exec", "--api", gateway.api, "host-4", "--",
        "sh", "-c", f"sleep 300 & echo $! > {pid_file}; echo ready; wait",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        await process.wait()
    child = int(pid_file.read_text())

    async def gone() -> bool:
        try:
            with open(f"/proc/{child}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await until(gone)


async def test_shipped_agents_connect_through_a_frozen_valkey(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi
) -> None:
    """20 agents start while Valkey is frozen for 12 s: all come online, and none is told to stay away."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    os.kill(own_valkey.pid, signal.SIGSTOP)
    agents = [Agent(gateway.link, f"sdk-{n}", "development-agent-token") for n in range(20)]
    for agent in agents:

        @agent.command("whoami")
        async def whoami(me: str) -> str:
            return me

    serving = [asyncio.ensure_future(agent.serve()) for agent in agents]
    try:
        await asyncio.sleep(12)  # the fault itself
        os.kill(own_valkey.pid, signal.SIGCONT)
        for agent in agents:
            await until(partial(online, api, agent.id))
        for agent in agents:
            end = await api.end(await api.start(agent.id, "whoami", payload={"me": agent.id}))
            assert (end["state"], end["payload"]) == ("ok", agent.id)
        assert not any(task.done() for task in serving)
        assert 'code="4507"' not in (await api.http.get(f"{gateway.admin}/metrics")).text
    finally:
        for agent in agents:
            agent.stop()
        await asyncio.wait_for(asyncio.gather(*serving, return_exceptions=True), 20)


async def test_shipped_agents_reconnect_after_the_node_restarts(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    start_agent: StartAgent,
) -> None:
    """kill -9 of the node in mid-stream: the output of `seq` through it is complete and in order."""
    gateway = make_gateway(own_valkey.url)
    api = api_of(gateway)
    start_agent(gateway, "host-5")
    await until(lambda: online(api, "host-5"))
    script = "for i in $(seq 400); do echo $i; sleep 0.01; done"
    command = await api.start("host-5", "exec", payload={"argv": ["sh", "-c", script]}, deadline=120)

    async def some() -> bool:
        return bool((await api.get(command))["results"] > 20)

    await until(some)
    gateway.signal(signal.SIGKILL)
    await asyncio.to_thread(gateway.wait)
    await asyncio.sleep(0.5)  # the outage: the agent notices, and its program goes on
    gateway.start()
    api = api_of(gateway)
    assert (await api.end(command))["state"] == "ok"
    assert await api.output(command) == "".join(f"{n}\n" for n in range(1, 401))
