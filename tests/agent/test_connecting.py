"""Connecting to the gateway: proxies, certificate authorities, tokens that change, and one log line for each fault."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import ssl
from base64 import b64encode
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from fairlead.agent import Agent
from fairlead.agent.settings.token_file import TokenFile
from fairlead.errors import ConfigError

from support.agent.connect_proxy import Proxy
from support.agent.fixtures import Serve, StartAgentProcess
from support.agent.scripted_gateway import Gateway
from support.scripted_server import scripted
from support.waiting import until

TIMEOUT = 20.0


@pytest.fixture
def trust(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


# -- through a proxy -------------------------------------------------------------------------------


async def test_an_agent_connects_through_a_proxy(gateway: Gateway, proxy: Proxy, serve: Serve) -> None:
    serve(Agent(gateway.url, "edge-1", "t", proxy=proxy.url))
    link = await gateway.linked()
    target = gateway.url.removeprefix("ws://")
    assert proxy.heads[0].startswith(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n".encode())
    assert b"Authorization" not in proxy.heads[0], "the gateway's token is none of the proxy's business"
    await link.command("c", "nothing")
    await link.until(lambda: bool(link.of(type(link.heard[-1][1]), "c")))


async def test_an_agent_connects_with_tls_through_a_proxy_with_a_password(
    tls_gateway: Gateway, proxy: Proxy, serve: Serve, trust: ssl.SSLContext
) -> None:
    proxy.wants = f"Basic {b64encode(b'user:p@ss').decode()}"
    serve(Agent(tls_gateway.url, "edge-1", "t", ssl=trust, proxy=f"http://user:p%40ss@{proxy.authority}"))
    await tls_gateway.linked()
    assert len(proxy.heads) == 1
    assert b"/v1/link" not in proxy.heads[0]


async def test_an_agent_connects_with_tls_through_an_https_proxy(
    tls_gateway: Gateway, tls_proxy: Proxy, serve: Serve, trust: ssl.SSLContext
) -> None:
    serve(Agent(tls_gateway.url, "edge-1", "t", ssl=trust, proxy=tls_proxy.url))
    link = await tls_gateway.linked(hb=100)
    await link.until(lambda: len(link.heard) > 5)
    assert len(tls_proxy.heads) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "let it allow CONNECT"), (407, "put user and password"), (502, "it cannot reach the gateway")],
)
async def test_the_refusal_of_a_proxy_is_explained(
    gateway: Gateway, proxy: Proxy, serve: Serve, caplog: pytest.LogCaptureFixture, status: int, words: str
) -> None:
    caplog.set_level(logging.INFO)
    proxy.refuse = status
    serve(Agent(gateway.url, "edge-1", "t", proxy=proxy.url))
    await until(lambda: "refused a tunnel" in caplog.text)
    assert f"the proxy {proxy.url} refused a tunnel to {gateway.url[5:]} with {status}" in caplog.text
    assert words in caplog.text
    assert not gateway.attempts


async def test_a_wrong_password_stays_out_of_the_log(
    gateway: Gateway, proxy: Proxy, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    proxy.wants = "Basic other"
    serve(Agent(gateway.url, "edge-1", "t", proxy=f"http://user:hunter2@{proxy.authority}"))
    await until(lambda: "with 407" in caplog.text)
    assert "check the user and the password" in caplog.text
    assert "hunter2" not in caplog.text


def answering(answer: bytes) -> AbstractAsyncContextManager[int]:
    """A server that gives `answer` to whatever it is asked."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return scripted(script)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "is not an HTTP proxy"),
        (b"HTTP/1.1 200 OK\r\n\r\nsurplus", "more than its answer"),
        (b"", "closed the connection: no answer to CONNECT"),
    ],
)
async def test_an_answer_that_is_not_from_a_proxy_is_explained(
    gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture, answer: bytes, words: str
) -> None:
    caplog.set_level(logging.INFO)
    async with answering(answer) as port:
        serve(Agent(gateway.url, "edge-1", "t", proxy=f"http://127.0.0.1:{port}"))
        await until(lambda: words in caplog.text)


@pytest.mark.parametrize(
    "proxy", ["socks5://x", "http://", "http://x:99999", f"http://{'a' * 70}", "http://x/path", "x"]
)
def test_an_invalid_proxy_url_is_refused(proxy: str) -> None:
    with pytest.raises(ConfigError, match="proxy's address"):
        Agent("ws://x", "edge-1", "t", proxy=proxy)


async def test_an_invalid_host_name_is_refused(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    serve(Agent(f"ws://{'a' * 70}", "edge-1", "t"))
    await until(lambda: "not a valid host name" in caplog.text)


async def test_an_unreachable_proxy_is_named(gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with socket.socket() as held:  # bound, so that nobody else gets the port, and not listening
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        serve(Agent(gateway.url, "edge-1", "t", proxy=f"http://127.0.0.1:{port}"))
        await until(lambda: f"the proxy http://127.0.0.1:{port} cannot be reached" in caplog.text)


class Stripping:
    """A reverse proxy of the old kind: it passes requests on, but not the headers of a hop, Upgrade among them."""

    def __init__(self, gateway: str) -> None:
        self._host, _, port = gateway.removeprefix("ws://").rpartition(":")
        self._port = int(port)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            kept = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"upgrade:", b"connection:"))]
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            far_writer.write(b"\r\n".join([kept[0], b"Connection: close", *kept[1:]]))
            writer.write(await far_reader.read())
            await writer.drain()
            far_writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def test_a_proxy_that_removes_the_upgrade_is_named(
    gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = await asyncio.start_server(Stripping(gateway.url).serve, "127.0.0.1", 0)
    try:
        serve(Agent(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", "edge-1", "t"))
        await until(lambda: "refused the upgrade" in caplog.text)
    finally:
        server.close()
    assert "dropped `Upgrade: websocket`" in caplog.text
    assert "let it pass the headers Upgrade and Connection" in caplog.text


@pytest.mark.parametrize("status", [200, 400, 404, 426])
async def test_answers_of_a_server_without_websockets_are_explained(
    serve: Serve, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.INFO)
    answer = f"HTTP/1.1 {status} X\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<h1>Hello</h1>"
    async with answering(answer.encode()) as port:
        serve(Agent(f"ws://127.0.0.1:{port}", "edge-1", "t"))
        await until(lambda: f"with {status}" in caplog.text)
    assert "dropped `Upgrade: websocket`" in caplog.text
    assert "Upgrade and Connection" in caplog.text


async def test_the_target_of_a_redirect_is_named(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with answering(b"HTTP/1.1 301 X\r\nLocation: https://new.example/\r\nContent-Length: 0\r\n\r\n") as port:
        serve(Agent(f"ws://127.0.0.1:{port}", "edge-1", "t"))
        await until(lambda: "redirects to https://new.example/" in caplog.text)


# -- authorities -----------------------------------------------------------------------------------


async def test_a_private_authority_is_trusted_through_ca_file(
    tls_gateway: Gateway, agent_process: StartAgentProcess, certificate: Path
) -> None:
    agent_process(
        "-m", "fairlead", "agent", "run", "--url", tls_gateway.url, "--id", "edge-1", "--ca-file", str(certificate)
    )
    await tls_gateway.linked()


async def test_an_untrusted_certificate_is_explained(
    tls_gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    serve(Agent(tls_gateway.url, "edge-1", "t"))
    await until(lambda: "not trusted" in caplog.text)
    assert "ca_file" in caplog.text
    assert "Traceback" not in caplog.text


# -- tokens ----------------------------------------------------------------------------------------


async def test_a_token_that_is_replaced_is_used_at_the_next_attempt(
    gateway: Gateway, serve: Serve, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    path.chmod(0o600)
    serve(Agent(gateway.url, "edge-1", TokenFile(path)))
    link = await gateway.linked()
    path.write_text("second\n")
    await link.cut()
    await gateway.linked()
    assert [request.headers["Authorization"] for request in gateway.requests] == ["Bearer first", "Bearer second"]


async def test_a_token_file_may_be_missing_for_a_while(
    gateway: Gateway, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever replaces it may remove it first: the agent waits for it."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "token"
    task = serve(Agent(gateway.url, "edge-1", TokenFile(path)))
    await until(lambda: f"token_file {path} cannot be read" in caplog.text)
    path.write_text("late")
    path.chmod(0o600)
    await gateway.linked()
    assert not task.done()


async def test_an_expired_token_is_logged_once_and_retried_seldom(
    gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway.refusals.extend([(401, {})] * 3)
    serve(Agent(gateway.url, "edge-1", "expired"))
    await gateway.attempted(1)
    await until(lambda: "refused the upgrade with 401" in caplog.text)
    line = next(r for r in caplog.records if r.name == "fairlead.agent" and "401" in r.getMessage())
    assert line.levelno == logging.WARNING
    assert "token" in line.getMessage()
    wait = float(line.getMessage().rpartition(" in ")[2].removesuffix(" s"))
    assert 30 <= wait <= 60


async def test_an_agent_without_a_token_is_not_told_to_correct_it(
    gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """One with a client certificate presents none: what the gateway says about the certificate is enough."""
    gateway.refusals.extend([(401, {})] * 3)
    serve(Agent(gateway.url, "edge-1", lambda: ""))
    await gateway.attempted(1)
    await until(lambda: "refused the upgrade with 401" in caplog.text)
    assert "token" not in caplog.text


# -- one line for each thing wrong -----------------------------------------------------------------


async def test_an_unreachable_gateway_is_logged_once(
    agent_process: StartAgentProcess, tmp_path: Path, certificate: Path
) -> None:
    """Over many attempts, and again when the cause is another. The log is JSON, for which this is as good a place."""
    held = socket.socket()  # bound, so that nobody else gets the port, and not listening yet
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    agent = agent_process(
        "-m", "fairlead", "agent", "run", "--url", f"ws://127.0.0.1:{port}", "--id", "edge-1", "--log-format", "json",
        "--log-level", "debug",
    )  # fmt: skip
    lines: list[dict[str, str]] = []

    def logged(level: str, words: str) -> list[dict[str, str]]:
        lines[:] = [json.loads(line) for line in agent.log.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if line["level"] == level and words in line["message"]]

    await until(lambda: len(logged("debug", "cannot be reached")) >= 2)
    assert len(logged("warning", "cannot be reached")) == 1, lines
    assert re.search(r"connecting again (in [0-9.]+ s|at once)$", lines[-1]["message"])
    assert all(line.keys() == {"time", "level", "logger", "message"} for line in lines)
    refuses = b"HTTP/1.1 503 X\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nfull"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refuses)
        writer.close()

    server = await asyncio.start_server(serve, sock=held)
    try:
        await until(lambda: len(logged("debug", "with 503")) >= 1)
    finally:
        server.close()
    assert len(logged("warning", "with 503 (full)")) == 1
    assert len(logged("warning", "cannot be reached")) == 1
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code() == 0


async def test_the_same_cause_is_logged_again_after_a_link(
    gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway.refusals.extend([(500, {})] * 2)
    serve(Agent(gateway.url, "edge-1", "t"))
    link = await gateway.linked()
    assert caplog.text.count("with 500") == 1
    gateway.refusals.extend([(500, {})] * 2)
    await link.cut()
    await gateway.linked()
    assert caplog.text.count("with 500") == 2


async def test_exec_does_not_inherit_the_token(gateway: Gateway, agent_process: StartAgentProcess) -> None:
    assert "FAIRLEAD_AGENT_TOKEN" not in os.environ
    agent_process("-m", "fairlead", "agent", "run", "--url", gateway.url, "--id", "edge-1")
    link = await gateway.linked()
    await link.command("c", "exec", {"argv": ["env"]})
    await link.end("c")
    assert b"PATH=" in link.output("c")
    assert b"FAIRLEAD_AGENT_TOKEN" not in link.output("c")
    assert gateway.requests[0].headers["Authorization"] == "Bearer token-1"
