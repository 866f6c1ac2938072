"""A node's name is borne by one process at a time: the second says who has it, and a killed one gets it back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from fairlead.routing.process import Process
from fairlead.wire.close import Close


@pytest.mark.timeout(90)
async def test_the_second_process_of_a_name_refuses_to_start_and_names_the_first(
    own_valkey: Any, make_gateway: Any, dial: Any, api_of: Any
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
    assert f"there is a node 'same' already: process {first.pid} on " in second.stdout
    assert "give this one a name of its own (--node or FAIRLEAD_NODE), or stop that one first" in second.stdout
    assert "beginning a new life" not in first.log()  # it was not disturbed
    assert (await api_of(first).agent(peer.agent))["state"] == "online"


async def test_a_killed_node_has_its_name_back_at_once(own_valkey: Any, make_gateway: Any) -> None:
    gateway = make_gateway(own_valkey.url)
    gateway.signal(signal.SIGKILL)
    gateway.wait()
    gateway.start()
    assert "waiting until it beats again" not in gateway.log()


@pytest.mark.timeout(150)
async def test_a_frozen_node_whose_name_was_taken_yields_and_comes_back(
    own_valkey: Any, make_gateway: Any, dial: Any, api_of: Any, until: Any, tmp_path: Any
) -> None:
    frozen = make_gateway(own_valkey.url, name="same")
    peer = await dial(frozen)
    await peer.greet()
    frozen.signal(signal.SIGSTOP)
    before = len(frozen.log())
    taker = type(frozen)(tmp_path / "taker", own_valkey.url, (), "same")
    taker.folder.mkdir()
    await asyncio.to_thread(taker.start)  # once the frozen one has been silent for 15 s
    try:
        assert f"process {frozen.pid} on " in taker.log()
        assert "has been silent for 15 s" in taker.log()
        frozen.signal(signal.SIGCONT)
        assert await peer.close_code() == Close.RESTART
        http = api_of(frozen).http

        async def unready() -> bool:
            answer = await http.get(f"{frozen.admin}/readyz")
            return bool(answer.status_code == 503 and f"process {taker.pid} on " in answer.text)

        async def ready() -> bool:
            return bool((await http.get(f"{frozen.admin}/readyz")).status_code == 200)

        await until(unready)
        assert "beginning a new life" not in taker.log()
    finally:
        await asyncio.to_thread(taker.stop)
    await until(ready)
    again = await dial(frozen, peer.agent)
    await again.greet(conn=2)
    assert frozen.log()[before:].count("already: process") == 1  # told once, not with each beat


def test_a_process_is_gone_when_it_has_ended_or_its_pid_is_another_s() -> None:
    own = Process.own()
    assert own.pid == os.getpid()
    assert Process.parse(own.packed()) == own
    assert not own.gone()
    assert replace(own, started="1").gone()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = replace(own, pid=child.pid, started="")
    assert not other.gone()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert other.gone()  # though nobody has waited for it yet
    child.communicate()
    assert other.gone()
    assert not replace(other, space="another machine").gone()
    assert not Process.parse("").gone()
    assert not Process.parse("nonsense").gone()
