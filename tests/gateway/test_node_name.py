"""One process at a time has a node's name: a second one says who has it, and a killed one gets it back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.routing.membership.process_identity import ProcessIdentity
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.close_codes import CloseCode

from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import MakeGateway
from support.gateway.scripted_agent import DialAgent
from support.waiting import until

NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.mark.timeout(90)
async def test_the_second_process_of_a_name_refuses_to_start_and_names_the_first(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, api_of: MakeGatewayApi
) -> None:
    first = make_gateway(own_valkey.url, name="same")
    peer = await dial(first)
    await peer.greet()
    second = await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable, "-m", "fairlead", "serve", "--node", "same", "--redis", own_valkey.url,
            "--link-port", "0", "--api-port", "0", "--admin-port", "0",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert second.returncode == 2, second.stdout
    assert f"the node name 'same' is in use already: process {first.pid} on " in second.stdout
    assert "give this node a name of its own (--node or FAIRLEAD_NODE), or stop the other one first" in second.stdout
    assert "joining again" not in first.log()  # it was not disturbed
    assert (await api_of(first).agent(peer.agent))["state"] == "online"


async def test_a_killed_node_gets_its_name_back_at_once(own_valkey: EmbeddedValkey, make_gateway: MakeGateway) -> None:
    gateway = make_gateway(own_valkey.url)
    gateway.signal(signal.SIGKILL)
    gateway.wait()
    gateway.start()
    assert "waiting until it sends a heartbeat" not in gateway.log()


@pytest.mark.timeout(150)
async def test_a_frozen_node_whose_name_was_taken_gives_way_and_returns_later(
    own_valkey: EmbeddedValkey,
    make_gateway: MakeGateway,
    dial: DialAgent,
    api_of: MakeGatewayApi,
    tmp_path: Path,
) -> None:
    frozen = make_gateway(own_valkey.url, name="same")
    peer = await dial(frozen)
    await peer.greet()
    # However long the taker takes to start: it meets no Redis before it has, and only then is the other one frozen.
    address, reached = tmp_path / "redis.sock", asyncio.Event()

    def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    closed = await asyncio.start_unix_server(refuse, address)
    taker = type(frozen)(tmp_path / "taker", f"unix://{address}", (), "same")
    taker.folder.mkdir()
    starting = asyncio.create_task(asyncio.to_thread(taker.start))
    async with asyncio.timeout(60):
        await reached.wait()
    closed.close()
    address.unlink(missing_ok=True)
    frozen.signal(signal.SIGSTOP)
    before = len(frozen.log())
    address.symlink_to(own_valkey.url.removeprefix("unix://").partition("?")[0])
    await starting  # once the frozen one has been silent for 15 s
    try:
        assert f"process {frozen.pid} on " in taker.log()
        assert "has been silent for 15 s" in taker.log()
        frozen.signal(signal.SIGCONT)
        assert await peer.close_code() == CloseCode.RESTART
        http = api_of(frozen).http

        async def unready() -> bool:
            answer = await http.get(f"{frozen.admin}/readyz")
            return bool(answer.status_code == 503 and f"process {taker.pid} on " in answer.text)

        async def ready() -> bool:
            return bool((await http.get(f"{frozen.admin}/readyz")).status_code == 200)

        await until(unready)
        assert "joining again" not in taker.log()
    finally:
        await asyncio.to_thread(taker.stop)
    await until(ready)
    again = await dial(frozen, peer.agent)
    await again.greet(conn=2)
    assert frozen.log()[before:].count("already: process") == 1  # logged once, not with each heartbeat


def test_a_process_is_gone_when_it_has_ended_or_its_pid_was_reused() -> None:
    own = ProcessIdentity.own()
    assert own.pid == os.getpid()
    assert ProcessIdentity.parse(own.packed()) == own
    assert not own.has_ended(own)
    assert replace(own, started="1").has_ended(own)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = replace(own, pid=child.pid, started="")
    assert not other.has_ended(own)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert other.has_ended(own)  # though nobody has waited for it yet
    child.communicate()
    assert other.has_ended(own)
    assert not replace(other, space="another machine").has_ended(own)
    assert not ProcessIdentity.parse("").has_ended(own)
    assert not ProcessIdentity.parse("nonsense").has_ended(own)


def test_the_previous_process_of_a_restarted_container_is_gone() -> None:
    own = ProcessIdentity.own("pod-1")
    assert ProcessIdentity.parse(own.packed()) == own
    before = replace(own, pid=1, started="", space="the namespace of the container before")
    assert before.has_ended(own)
    assert not replace(before, pod="pod-2").has_ended(own)
    assert not replace(before, pod="").has_ended(own)
    assert not before.has_ended(replace(own, pod=""))  # nobody outside of a pod can know it
    assert not before.has_ended(replace(own, space=""))
    # In the pod, but in the same namespace: a second process beside the first, which can be asked after.
    assert not own.has_ended(own)


@pytest.mark.timeout(90)
async def test_a_restarted_container_gets_its_name_back_at_once(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, dial: DialAgent, tmp_path: Path
) -> None:
    """Two PID namespaces on one machine, as a restarted container has them: unshare(1) creates the second one."""
    probe = await asyncio.to_thread(subprocess.run, [*NAMESPACE, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine lets nobody make a PID namespace")
    pod = ("--pod-uid", "6f5c1a52-6b1f-4c9d-8f0e-0d7f0f2f5a11")
    first = make_gateway(own_valkey.url, *pod, name="same")
    first.signal(signal.SIGKILL)
    first.wait()
    second = type(first)(tmp_path / "second", own_valkey.url, pod, "same", within=NAMESPACE)
    second.folder.mkdir()
    await asyncio.to_thread(second.start)
    try:
        assert "waiting until it sends a heartbeat" not in second.log()
        peer = await dial(second)
        await peer.greet()
    finally:
        second.signal(signal.SIGKILL)  # unshare ignores SIGTERM; its child ends with it
        second.wait()
