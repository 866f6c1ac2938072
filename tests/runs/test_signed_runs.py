"""Signed runs from the caller to agents with trusted keys: real nodes, a real Valkey, the shipped agent and command
line."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.agent import Command
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.client import Client
from fairlead.client.signer import sign_run
from fairlead.signing.keys import PrivateKey, generate

from support.agent.hosted_agents import HostedAgents
from support.cli.processes import environment
from support.gateway.platform_api import PLATFORM, PLATFORM_TOKEN
from support.plain_http import plain_post
from support.waiting import until

if TYPE_CHECKING:
    from runs.conftest import MakeRunFleet, RunFleet

    from fairlead.store.embedded_valkey.server import EmbeddedValkey

pytestmark = pytest.mark.timeout(240)

KEY = generate()


class Pinned(HostedAgents):
    """Agents that trust KEY alone, and what they have run."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.ran: list[str] = []
        self.gate = asyncio.Event()

    def pin(self, link: str, names: list[str]) -> None:
        for name in names:
            folder, keys = self._folder / f"journal-{name}", TrustedKeys([KEY.public])
            self.connect(link, name, {"work": self._work(name)}, journal=folder, trusted_keys=keys)

    def _work(self, name: str) -> Callable[..., Any]:
        async def work(command: Command) -> str:
            await self.gate.wait()
            self.ran.append(name)
            return "done"

        return work


@pytest.fixture
async def pinned(tmp_path: Path) -> AsyncIterator[Pinned]:
    made = Pinned(tmp_path)
    yield made
    made.gate.set()
    await made.stop()


async def online(fleet: RunFleet, names: list[str], node: int = 0) -> None:
    await until(
        lambda: asyncio.to_thread(lambda: all(fleet.agent(name, node).get("state") == "online" for name in names))
    )


async def ended(fleet: RunFleet, run: str, node: int = 0) -> dict[str, Any]:
    return await asyncio.to_thread(fleet.end, run, node)


async def command_line(fleet: RunFleet, *args: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-P", "-m", "fairlead", *args]

    def call() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            line, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False,
            env=environment(fleet.nodes[0].api),
        )  # fmt: skip

    return await asyncio.to_thread(call)


async def test_the_command_line_signs_a_run_and_every_agent_verifies_it(
    fleet: RunFleet, pinned: Pinned, tmp_path: Path
) -> None:
    names = [f"signed-{n}" for n in range(7)]
    pinned.gate.set()
    pinned.pin(fleet.nodes[1].link, names)
    await online(fleet, names)
    (tmp_path / "key").write_bytes(KEY.pem())
    (tmp_path / "stranger").write_bytes(generate().pem())
    key, listed = ("--sign-with", str(tmp_path / "key")), ("--agents", ",".join(names))
    done = await command_line(fleet, "run", *key, *listed, "work")
    assert done.returncode == 0, done.stderr
    assert b"== 7 agents ok: " in done.stdout
    assert sorted(pinned.ran) == names
    without = await command_line(fleet, "run", *listed, "work")
    assert without.returncode == 1
    assert b"== 7 agents failed (signature_missing)" in without.stdout
    stranger = await command_line(fleet, "run", "--sign-with", str(tmp_path / "stranger"), *listed, "work")
    assert b"== 7 agents failed (signature_key_unknown)" in stranger.stdout
    assert sorted(pinned.ran) == names


async def test_a_selector_is_signed_for_the_agents_that_the_user_has_seen(
    fleet: RunFleet, pinned: Pinned, tmp_path: Path
) -> None:
    names = ["picked-1", "picked-2"]
    pinned.gate.set()
    pinned.pin(fleet.nodes[0].link, names)
    await online(fleet, names)
    async with Client(fleet.nodes[0].api, PLATFORM_TOKEN) as client:
        for name in names:
            await client.label(name, {"picked": "yes"})
    (tmp_path / "key").write_bytes(KEY.pem())
    chosen = ("run", "--sign-with", str(tmp_path / "key"), "-l", "label.picked=yes", "work")
    unasked = await command_line(fleet, *chosen)
    assert unasked.returncode == 2
    assert b"add --yes to sign for all agents that the gateway finds" in unasked.stderr
    assert pinned.ran == []
    done = await command_line(fleet, *chosen, "--yes")
    assert done.returncode == 0, done.stderr
    assert sorted(pinned.ran) == names
    none = await command_line(fleet, "run", "--sign-with", str(tmp_path / "key"), "-l", "label.picked=no", "-y", "work")
    assert b"no agent matches the selector" in none.stderr


async def signed_body(key: PrivateKey, agents: list[str], **more: object) -> dict[str, object]:
    run, signature = await sign_run(key, "work", b"{}", "bulk", "never", 3600, agents)
    return {
        "method": "work", "agents": agents, "id": run, "signature": base64.b64encode(signature).decode(), **more,
    }  # fmt: skip


async def test_a_signed_run_has_an_id_in_place_of_a_key_and_is_begun_once(fleet: RunFleet, pinned: Pinned) -> None:
    names = ["once-1", "once-2", "once-3"]
    pinned.gate.set()
    pinned.pin(fleet.nodes[0].link, names)
    await online(fleet, names)
    body = await signed_body(KEY, names)
    first = await asyncio.to_thread(fleet.post, 0, **body)
    assert (first.status_code, first.json()["id"]) == (202, body["id"])
    assert (await ended(fleet, str(body["id"]), 1))["counts"] == {"ok": 3}
    again = await asyncio.to_thread(fleet.post, 1, **body)
    assert (again.status_code, again.json()["id"], again.headers["idempotency-replayed"]) == (202, body["id"], "true")
    other = await signed_body(generate(), names)
    conflict = await asyncio.to_thread(fleet.post, 1, **{**body, "signature": other["signature"]})
    assert (conflict.status_code, conflict.json()["code"]) == (422, "idempotency_conflict")
    retried = await asyncio.to_thread(fleet_retry, fleet, str(body["id"]))
    assert (retried.status_code, retried.json()["field"]) == (422, "run")
    assert sorted(pinned.ran) == names


def fleet_retry(fleet: RunFleet, run: str) -> Any:
    return plain_post(
        f"{fleet.nodes[0].api}/v1/runs/{run}/retry", json={"states": ["ok"]}, headers=PLATFORM, timeout=30
    )


async def test_agents_that_the_caller_has_not_signed_for_refuse_the_run(fleet: RunFleet, pinned: Pinned) -> None:
    """As if a captured gateway had added a target, or changed the payload: the tree is not the one that was signed."""
    names = ["added-1", "added-2"]
    pinned.gate.set()
    pinned.pin(fleet.nodes[0].link, names)
    await online(fleet, names)
    for change in ({"agents": names}, {"payload": {"n": 1}}, {"retry": "safe"}):
        body = await signed_body(KEY, names[:1])
        run = await asyncio.to_thread(fleet.begin, 0, **{**body, **change})
        outcomes = (await ended(fleet, run))["outcomes"]
        assert {outcome["code"] for outcome in outcomes} == {"signature_invalid"}
    assert pinned.ran == []


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "no signature": (lambda body: {**body, "signature": None}, "signature"),
    "no id": (lambda body: {**body, "id": None}, "id"),
    "a selector": (lambda body: {**body, "agents": None, "selector": "*"}, "agents"),
    "an id that is no UUIDv7": (lambda body: {**body, "id": "0b9cb19e-0a0b-4b6c-8f4e-0123456789ab"}, "id"),
    "an id of next year": (lambda body: {**body, "id": "02" + body["id"][2:]}, "id"),
    "the signature of a command": (
        lambda body: {**body, "signature": base64.b64encode(b"\1" + bytes(97)).decode()},
        "signature",
    ),
    "a signature with a path": (
        lambda body: {**body, "signature": base64.b64encode(b"\2" + bytes(97 + 33)).decode()},
        "signature",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_half_a_signature_is_refused_before_anything_runs(fleet: RunFleet, name: str) -> None:
    change, field = CHANGES[name]
    body = {name: value for name, value in change(await signed_body(KEY, ["all-0"])).items() if value is not None}
    answer = await asyncio.to_thread(fleet.post, 0, **body)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


async def test_another_node_goes_on_with_a_signed_run(
    make_fleet: MakeRunFleet, own_valkey: EmbeddedValkey, pinned: Pinned
) -> None:
    fleet = make_fleet(own_valkey.url)
    owner, _ = fleet.node(), fleet.node()
    names = [f"left-{n}" for n in range(9)]
    pinned.pin(fleet.nodes[1].link, names)
    await online(fleet, names, 1)
    run = await asyncio.to_thread(fleet.begin, 0, **await signed_body(KEY, names, concurrency=2))
    await until(lambda: asyncio.to_thread(lambda: fleet.get(run, 1)["counts"].get("started") == 2))
    owner.signal(signal.SIGKILL)
    await until(lambda: asyncio.to_thread(lambda: fleet.get(run, 1)["node"] == "node-2"), 20)
    pinned.gate.set()
    assert (await ended(fleet, run, 1))["counts"] == {"ok": 9}
    assert sorted(pinned.ran) == names
    lines = await asyncio.to_thread(fleet.results, run, 1)
    assert {json.dumps(line["payload"]) for line in lines[:-1]} == {'"done"'}
