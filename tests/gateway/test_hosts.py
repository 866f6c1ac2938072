"""The rules for Host and Origin, alone and on the ports of a real node: no web page can reach a port through a
browser."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st

from fairlead.app.access.hosts import REMEMBERED, HostRules
from fairlead.errors import Forbidden
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.wire.messages import SUBPROTOCOL_MSGPACK

from support.gateway.process import GatewayProcess, MakeGateway
from support.plain_http import plain_client

OWN = ("a-token-for-the-platform", "a-token-for-the-agents")
FOREIGN = "https://attacker.example"


def admits(hosts: HostRules, host: str | None, origin: str | None = None) -> bool:
    headers = [(name, value.encode()) for name, value in ((b"host", host), (b"origin", origin)) if value is not None]
    try:
        hosts.check(headers)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8081", "127.0.0.1:8081", "127.1.2.3", "[::1]:80", "localhost."]
)
def test_names_of_this_machine_are_admitted(host: str) -> None:
    assert admits(HostRules(loopback_only=True), host)


@pytest.mark.parametrize(
    "host", ["attacker.example", "127.0.0.1.attacker.example:8081", "192.0.2.1", "", None, "localhost.attacker.example"]
)
def test_names_of_other_machines_are_refused(host: str | None) -> None:
    assert not admits(HostRules(loopback_only=True), host)
    assert not admits(HostRules(["gateway.example.com", "*.links.example.com"]), host)
    assert admits(HostRules(), host)


def test_what_was_refused_stays_refused_and_what_is_remembered_is_bounded() -> None:
    hosts = HostRules(["*.links.example.com"])
    for number in range(2 * REMEMBERED):
        assert admits(hosts, f"{number}.links.example.com")
        assert not admits(hosts, f"{number}.attacker.example")
    for number in range(2 * REMEMBERED):
        assert admits(hosts, f"{number}.links.example.com")
        assert not admits(hosts, f"{number}.attacker.example")
    assert not admits(hosts, None)
    assert len(hosts._accepted) == REMEMBERED  # what clients choose must not grow


def test_host_patterns_are_matched() -> None:
    hosts = HostRules(["gateway.example.com", "*.links.example.com", "192.0.2.7"])
    for host in ("gateway.example.com:443", "Gateway.Example.Com", "eu.links.example.com", "a.b.links.example.com"):
        assert admits(hosts, host)
    for host in ("links.example.com", "x.gateway.example.com", "xlinks.example.com", "192.0.2.70", "localhost"):
        assert not admits(hosts, host)
    assert admits(hosts, "192.0.2.7:8080")
    assert admits(HostRules(["gateway.test"], loopback_only=True), "localhost")


@pytest.mark.parametrize("text", ["a{}a", "a{}", "{}", "a{}@", "[{}]", "[{}", "a:{}"])
@pytest.mark.parametrize("filling", [".", "0", "a.", ":"])
def test_long_names_are_read_in_linear_time(text: str, filling: str) -> None:
    """Where they were not, one request of 64 KB, from anybody, held up the node for minutes."""
    long = text.replace("{}", filling * (500_000 // len(filling)))
    for rules in (HostRules(loopback_only=True), HostRules(["example.com", "*.example.com"])):
        assert not admits(rules, long)
        assert not admits(rules, "example.com", f"http://{long}")


def test_origins_are_refused_unless_listed() -> None:
    listed = HostRules(origins=["https://console.example.com"])
    assert admits(listed, "x", "https://console.example.com")
    for origin in (FOREIGN, "null", "", "https://console.example.com.attacker.example", "http://localhost:3000"):
        assert not admits(listed, "x", origin)
    development = HostRules(loopback_only=True)
    assert admits(development, "localhost", "http://localhost:3000")
    assert admits(development, "localhost", "http://[::1]:3000")
    for origin in (FOREIGN, "null", "file://", "://localhost", "http://localhost.attacker.example"):
        assert not admits(development, "localhost", origin)


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:80@attacker.example", "http://localhost@attacker.example", "http://[::1].attacker.example",
        "http://[::1]x", "http://localhost:80/x", "http://localhost#attacker.example", "null", "",
    ],
)  # fmt: skip
def test_origins_that_only_begin_like_this_machine_are_refused(origin: str) -> None:
    assert not admits(HostRules(loopback_only=True), "localhost", origin)
    assert admits(HostRules(loopback_only=True), "localhost", "http://[::1]:3000")


def test_each_of_several_origins_is_checked() -> None:
    both = [(b"host", b"localhost"), (b"origin", FOREIGN.encode()), (b"origin", b"http://localhost")]
    for headers in (both, list(reversed(both))):
        with pytest.raises(Forbidden):
            HostRules(loopback_only=True).check(headers)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_header_is_admitted_or_forbidden(host: bytes, origin: bytes) -> None:
    headers = [(b"host", host), (b"origin", origin)]
    with contextlib.suppress(Forbidden):
        HostRules(loopback_only=True).check(headers)


@pytest.fixture(scope="module", params=["epoll", "asyncio"])
def accepting(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """With epoll the node accepts links without an HTTP connection, and leaves every refusal to the application."""
    return ("--link-transport", request.param)


async def statuses(gateway: GatewayProcess, token: str, agent_token: str, **headers: str) -> list[int]:
    """The statuses of the link, API and admin ports for a request with these headers and a valid token."""
    found = []
    try:
        async with websockets.connect(
            f"{gateway.link}/v1/link", subprotocols=[websockets.Subprotocol(SUBPROTOCOL_MSGPACK)], proxy=None,
            additional_headers={**headers, "authorization": f"Bearer {agent_token}"},
        ):  # fmt: skip
            found.append(101)
    except websockets.InvalidStatus as refused:
        found.append(refused.response.status_code)
    async with plain_client() as http:
        answer = await http.get(f"{gateway.api}/v1/agents", headers={"authorization": f"Bearer {token}", **headers})
        found.append(answer.status_code)
        found.append((await http.get(f"{gateway.admin}/livez", headers=headers)).status_code)
    return found


async def test_a_node_with_development_tokens_answers_to_this_machine_alone(gateway: GatewayProcess) -> None:
    tokens = ("development-platform-token", "development-agent-token")
    assert await statuses(gateway, *tokens) == [101, 200, 200]
    assert await statuses(gateway, *tokens, origin="http://localhost:3000") == [101, 200, 200]
    assert await statuses(gateway, *tokens, origin=FOREIGN) == [403, 403, 403]
    async with plain_client() as http:
        for url in (f"{gateway.api}/v1/agents", f"{gateway.admin}/metrics", f"{gateway.api}/v1/openapi.json"):
            headers = {"host": "attacker.example:8081", "authorization": f"Bearer {tokens[0]}"}
            answer = await http.get(url, headers=headers)
            assert answer.status_code == 403
            assert answer.json()["code"] == "forbidden"


async def test_a_real_node_checks_host_and_origin(
    make_gateway: MakeGateway, own_valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    flags = ["--allowed-hosts", "*.example.com,127.0.0.1", "--allowed-origins", "https://console.example.com"]
    for name, token in zip(("platform", "agent"), OWN, strict=True):
        (tmp_path / name).write_text(token)
        flags += [f"--{name}-token-file", str(tmp_path / name)]
    node, tokens = make_gateway(own_valkey.url, *flags), OWN
    assert await statuses(node, *tokens) == [101, 200, 200]
    assert await statuses(node, *tokens, origin="https://console.example.com") == [101, 200, 200]
    assert await statuses(node, *tokens, origin=FOREIGN) == [403, 403, 200]
    async with plain_client(headers={"authorization": f"Bearer {tokens[0]}"}) as http:
        for host, status in (("gw.example.com", 200), ("attacker.example", 403), ("localhost", 403)):
            assert (await http.get(f"{node.api}/v1/agents", headers={"host": host})).status_code == status
        # A probe comes by the address of the pod.
        assert (await http.get(f"{node.admin}/readyz", headers={"host": "10.1.2.3:8082"})).status_code == 200
