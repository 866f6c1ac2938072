"""`fairlead exec` with the APIs of two nodes: the node that it uses is killed, and the user sees nothing of it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.waiting import until

StartAgent = Callable[[GatewayProcess, str], None]
Exec = Callable[..., Coroutine[object, object, Process]]


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    """`fairlead agent run` as a process."""
    started: list[subprocess.Popen[bytes]] = []

    def start(gateway: GatewayProcess, name: str) -> None:
        with (tmp_path / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "fairlead", "agent", "run", "--url", gateway.link, "--id", name]
            started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
async def exec_() -> AsyncIterator[Exec]:
    """`fairlead exec` with all the gateways' APIs, the first one first."""
    started: list[Process] = []

    async def call(gateways: list[GatewayProcess], *args: str, stdin: int = DEVNULL) -> Process:
        apis = ",".join(gateway.api for gateway in gateways)
        started.append(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fairlead", "exec", "--api", apis, *args,
                stdin=stdin, stdout=PIPE, stderr=PIPE, limit=1 << 20,
            )
        )  # fmt: skip
        return started[-1]

    yield call
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def two_nodes(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    api_of: MakeGatewayApi,
    start_agent: StartAgent,
) -> list[GatewayProcess]:
    """Nodes A and B. The agent `host` is linked to B."""
    nodes = [make_gateway(own_valkey.url, name=name) for name in ("node-a", "node-b")]
    start_agent(nodes[1], "host")
    api = api_of(nodes[1])

    async def online() -> bool:
        answer = await api.http.get("/v1/agents/host")
        return bool(answer.status_code == 200 and answer.json()["state"] == "online")

    await until(online)
    return nodes


async def test_output_continues_through_the_other_node(two_nodes: list[GatewayProcess], exec_: Exec) -> None:
    script = "for i in $(seq 300); do echo $i; sleep 0.01; done; exit 7"
    process = await exec_(two_nodes, "host", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(40):
        head = [await process.stdout.readline() for _ in range(50)]
        two_nodes[0].signal(signal.SIGKILL)
        rest = await process.stdout.read()
        talk = await process.stderr.read()
        assert await process.wait() == 7, talk
    assert b"".join(head) + rest == b"".join(b"%d\n" % i for i in range(1, 301))
    assert talk == b"", "the user need not be told of anything"


async def test_stdin_continues_through_the_other_node(two_nodes: list[GatewayProcess], exec_: Exec) -> None:
    process = await exec_(two_nodes, "host", "--", "cat", stdin=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(40):
        process.stdin.write(b"before\n")
        assert await process.stdout.readline() == b"before\n"
        two_nodes[0].signal(signal.SIGKILL)
        process.stdin.write(b"after\n")
        assert await process.stdout.readline() == b"after\n"
        process.stdin.close()
        assert await process.stdout.read() == b""
        assert await process.wait() == 0


async def test_a_node_that_was_gone_before_the_request_is_skipped(two_nodes: list[GatewayProcess], exec_: Exec) -> None:
    two_nodes[0].signal(signal.SIGKILL)
    await asyncio.to_thread(two_nodes[0].wait)
    process = await exec_(two_nodes, "host", "--", "echo", "hello")
    async with asyncio.timeout(40):
        out, talk = await process.communicate()
    assert (process.returncode, out, talk) == (0, b"hello\n", b"")
