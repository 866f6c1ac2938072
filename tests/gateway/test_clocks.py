"""Clocks that are ten minutes off: of an agent, of a node, and of a caller that signs. Identity does not depend on
them; signatures do, and say so."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead.fleet.schema import agent_key
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.fixtures import RedisOf
from support.gateway.enrolled_agent import EnrolledAgent, new_token, until_state
from support.gateway.identity_site import IdentitySite, make_issuer_key, new_key, still_linked
from support.gateway.platform_api import MakeGatewayApi
from support.gateway.process import GatewayProcess, MakeGateway
from support.waiting import until
from support.wrong_clock import shifted_clock

TEN_MINUTES = 600


@pytest.fixture
def agents() -> Iterator[list[EnrolledAgent]]:
    started: list[EnrolledAgent] = []
    yield started
    for one in started:
        one.stop()


@pytest.mark.parametrize("seconds", [-TEN_MINUTES, TEN_MINUTES])
async def test_an_agent_enrols_links_renews_and_comes_back(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, agents: list[EnrolledAgent],
    tmp_path: Path, seconds: int,
) -> None:  # fmt: skip
    flags = ("--issuer-key", str(make_issuer_key(tmp_path)), "--credential-lifetime", "60")
    gateway = make_gateway(own_valkey.url, *flags)
    api, environment = api_of(gateway), shifted_clock(tmp_path, seconds)
    agent = EnrolledAgent(gateway, tmp_path / "web-1", "web-1", await new_token(gateway, "*"), environment)
    agents.append(agent)
    await until_state(api, "web-1", "online")
    first = agent.stored["credential"]
    await until(lambda: agent.stored["credential"] != first)  # a minute's credential is renewed after 40 s
    agent.stop()
    agent.start(environment={})  # and somebody has set the clock meanwhile
    await until_state(api, "web-1", "online")
    agent.stop()
    agent.start(environment=shifted_clock(tmp_path, -seconds))
    await until_state(api, "web-1", "online")
    assert (await api.agent("web-1"))["cloned"] is None


@pytest.mark.parametrize("seconds", [-TEN_MINUTES, TEN_MINUTES])
async def test_a_node_with_a_wrong_clock_issues_and_reads_the_credentials_of_the_others(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, redis_of: RedisOf, tmp_path: Path, seconds: int
) -> None:
    """Nodes take the time of Redis."""
    flags = ("--issuer-key", str(make_issuer_key(tmp_path)), "--credential-lifetime", "60")
    wrong = tuple(f"{name}={value}" for name, value in shifted_clock(tmp_path, seconds).items())
    store = await redis_of(own_valkey)
    off = IdentitySite(make_gateway(own_valkey.url, *flags, name="off", within=("env", *wrong)), store)
    right = IdentitySite(make_gateway(own_valkey.url, *flags, name="right"), store)
    for n, (issues, reads) in enumerate(((off, right), (right, off), (off, off))):
        key = new_key()
        credential = await issues.credential(f"web-{n}", key)
        await still_linked(await reads.link(f"web-{n}", credential, key))
        row = await store.submit("HGET", agent_key(f"web-{n}"), "up")
        seen = (await issues.http.get("/v1/nothing")).status_code
        assert (row is not None, seen) == (True, 404)
    for site in (off, right):
        await site.aclose()


@pytest.fixture
async def pinned(
    own_valkey: EmbeddedValkey, make_gateway: MakeGateway, api_of: MakeGatewayApi, tmp_path: Path
) -> AsyncIterator[GatewayProcess]:
    """A gateway with an agent that runs signed commands only."""
    gateway = make_gateway(own_valkey.url)
    made = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "fairlead", "keys", "generate", str(tmp_path / "ops")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with (tmp_path / "pinned.log").open("wb") as log:
        agent = subprocess.Popen(
            [
                sys.executable, "-m", "fairlead", "agent", "run", "--config", os.devnull, "--url", gateway.link, "--id",
                "pinned-1", "--journal", str(tmp_path / "journal"), "--trusted-keys", str(tmp_path / "ops.pub"),
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        await until_state(api_of(gateway), "pinned-1", "online")
        yield gateway
    finally:
        agent.kill()
        agent.wait(60)


async def test_a_caller_that_signs_with_a_wrong_clock_is_told_to_compare_the_clocks(
    pinned: GatewayProcess, tmp_path: Path
) -> None:
    async def run(seconds: int) -> subprocess.CompletedProcess[str]:
        words = (
            "exec",
            "--api",
            pinned.api,
            "--sign-with",
            str(tmp_path / "ops"),
            "-n",
            "pinned-1",
            "--",
            "echo",
            "ran",
        )
        return await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "fairlead", *words], capture_output=True, text=True, timeout=90,
            check=False, env={**os.environ, **shifted_clock(tmp_path, seconds)},
        )  # fmt: skip

    ahead = await run(TEN_MINUTES)
    assert (ahead.returncode, ahead.stdout) == (1, ""), ahead.stderr
    assert "s in the future by this agent's clock: expected at most 60 s (compare the clocks)" in ahead.stderr
    behind = await run(-TEN_MINUTES)
    assert (behind.returncode, behind.stdout) == (1, ""), behind.stderr
    assert "compare the clocks" in behind.stderr
    slightly = await run(30)
    assert (slightly.returncode, slightly.stdout) == (0, "ran\n"), slightly.stderr
