"""`fairlead doctor` on a healthy path to the gateway, and on each kind of faulty one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.cli.processes import CliFleet
from support.cli.relay import Relay
from support.free_ports import free_port

Run = Callable[..., subprocess.CompletedProcess[bytes]]


RelayTo = Callable[[str], Relay]


def checks(done: subprocess.CompletedProcess[bytes]) -> dict[str, dict[str, Any]]:
    """The steps to the last target, by name."""
    report = json.loads(done.stdout)
    assert (done.returncode == 0) is report["ok"] is all(one["ok"] is True for one in report["checks"])
    last = report["checks"][-1]["target"]
    return {one["name"]: one for one in report["checks"] if one["target"] == last}


def test_doctor_finds_no_fault_in_a_healthy_path(fleet: CliFleet, run: Run) -> None:
    done = run("doctor", "--links", fleet.links, "--admin", fleet.admin, "--idle", "0.5", api=fleet)
    assert done.returncode == 0, done.stdout
    text = done.stdout.decode()
    assert "✗" not in text
    for words in (
        "the gateway accepts the token",
        "reaches its Redis",
        "the node is ready",
        "101, fairlead.v1",
        "a link may be silent for",
    ):
        assert words in text
    assert b"all checks succeeded" in done.stderr
    gone = run("agents", "get", "fairlead-doctor", api=fleet)
    assert b"unknown agent" in gone.stderr, "the agent of the check for silence stays in no list"


def test_json_has_each_step(fleet: CliFleet, run: Run) -> None:
    done = run("doctor", "--links", fleet.links, "--idle", "0", "-o", "json", api=fleet)
    found = checks(done)
    assert list(found) == ["url", "dns", "tcp", "tls", "upgrade", "token"]
    assert set(found["tcp"]) == {"name", "target", "ok", "message", "advice", "seconds"}


def test_doctor_names_which_token_is_wrong(fleet: CliFleet, run: Run) -> None:
    args = ("doctor", "-o", "json", "--idle", "1")
    found = checks(run(*args, "--no-links", "--token", "not-the-right-token", api=fleet))
    assert found["api"]["ok"] is True
    assert "FAIRLEAD_TOKEN" in found["token"]["advice"]
    assert found["redis"]["ok"] is None
    found = checks(run(*args, "--links", fleet.links, "--agent-token", "not-the-right-token", api=fleet))
    assert found["upgrade"]["ok"] is True, "the gateway itself has refused it: the upgrade went through"
    assert "FAIRLEAD_AGENT_TOKEN" in found["token"]["advice"]


def test_a_proxy_that_strips_the_upgrade_is_named(fleet: CliFleet, run: Run, relay_to: RelayTo) -> None:
    relay = relay_to(fleet.links)
    relay.strips = True
    relay.server = "oldproxy/1.0"
    done = run("doctor", "--links", f"ws://127.0.0.1:{relay.port}", "-o", "json", api=fleet)
    assert done.returncode == 1
    found = checks(done)
    assert "removes the upgrade" in found["upgrade"]["message"]
    assert "oldproxy/1.0" in found["upgrade"]["message"]
    assert "proxy_set_header Upgrade" in found["upgrade"]["advice"]
    assert found["idle"]["ok"] is None


def test_doctor_recognizes_the_port_of_the_api(fleet: CliFleet, run: Run) -> None:
    links = fleet.api.replace("http", "ws")
    found = checks(run("doctor", "--links", links, "-o", "json", api=fleet))
    assert "not the port of links" in found["upgrade"]["message"]
    api = fleet.links.replace("ws", "http")
    found = checks(run("doctor", "--no-links", "-o", "json", api=api))
    assert "not from Fairlead's API" in found["api"]["message"]
    assert "8081" in found["api"]["advice"]


@pytest.mark.parametrize("forgets", [False, True])
def test_doctor_measures_the_idle_timeout_of_a_proxy(
    fleet: CliFleet, run: Run, relay_to: RelayTo, forgets: bool
) -> None:
    """One that says so, and one that only forgets the connection, which is found out when the link speaks again."""
    relay = relay_to(fleet.links)
    relay.idle, relay.forgets = 0.6, forgets
    done = run("doctor", "--links", f"ws://127.0.0.1:{relay.port}", "--idle", "1.5", "-o", "json", api=fleet)
    assert done.returncode == 1
    found = checks(done)
    assert found["token"]["ok"] is True
    message, advice = found["idle"]["message"], found["idle"]["advice"]
    if forgets:
        assert "the link was dead after" in message
    else:
        assert 0.5 < float(message.partition("closed a link after ")[2].partition(" s")[0]) < 1.4
        assert "proxy_read_timeout" in advice
    assert "heartbeat" in advice


def test_a_link_closed_by_the_gateway_itself_is_not_a_fault(
    run: Run, tmp_path: Path, gateway_over: Callable[..., tuple[str, str, str]]
) -> None:
    links, api, _ = gateway_over(tmp_path, "embedded", "--heartbeat=1")
    found = checks(run("doctor", "--links", links, "--idle", "20", "-o", "json", api=api))
    assert found["idle"]["ok"] is True
    assert "the gateway itself closed it" in found["idle"]["message"]


def test_doctor_reports_that_nobody_listens(fleet: CliFleet, run: Run) -> None:
    port = free_port()
    found = checks(run("doctor", "--no-links", "-o", "json", api=f"http://127.0.0.1:{port}"))
    assert found["dns"]["ok"] is True
    assert str(port) in found["tcp"]["message"]
    assert "running" in found["tcp"]["advice"]
    assert [found[name]["ok"] for name in ("tls", "api", "token", "redis")] == [None] * 4
    found = checks(run("doctor", "--links", f"ws://127.0.0.1:{port}", "-o", "json", api=fleet))
    assert found["tcp"]["ok"] is False


@pytest.mark.parametrize(
    ("api", "step", "words"),
    [
        ("gateway:8081", "url", "expected https://HOST or http://HOST:PORT"),
        ("http://[::1", "url", "invalid URL"),
        ("http://127.0.0.1:99999", "url", "invalid URL"),
        ("http://me:secret@127.0.0.1", "url", "more than host, port and path"),
        ("http://nowhere.invalid", "dns", "unknown name"),
    ],
)
def test_invalid_addresses_are_usage_errors(run: Run, api: str, step: str, words: str) -> None:
    done = run("doctor", "--no-links", "--token", "some-long-enough-token", "-o", "json", api=api)
    assert done.returncode == 1
    found = checks(done)
    assert found[step]["ok"] is False
    assert words in found[step]["message"]
    assert found[step]["advice"]


def test_an_invalid_address_is_refused_before_a_token_is_asked_for(run: Run) -> None:
    found = checks(run("doctor", "--no-links", "-o", "json", api="ftp://x"))
    assert "invalid URL 'ftp://x': expected https://HOST" in found["url"]["message"]


def test_doctor_uses_the_proxy_of_the_environment(
    gateway_over: Callable[..., tuple[str, str, str]], run: Run, relay_to: RelayTo, tmp_path: Path
) -> None:
    """The API has a name that only the proxy knows, and so it has tokens of its own."""
    (tmp_path / "token").write_text("a-platform-token-of-its-own")
    _, api, _ = gateway_over(tmp_path, "embedded", f"--platform-token-file={tmp_path / 'token'}")
    relay = relay_to(api)
    token = ("--token", "a-platform-token-of-its-own")
    args = ("doctor", "--no-links", "-o", "json", *token)
    env = {"http_proxy": f"http://127.0.0.1:{relay.port}", "no_proxy": ""}
    found = checks(run(*args, api="http://gateway.invalid", env=env))
    assert f"through the proxy 127.0.0.1:{relay.port}" in found["url"]["message"]
    assert [one["ok"] for one in found.values()] == [True] * 7
    found = checks(run(*args, api="http://gateway.invalid", env={**env, "no_proxy": "gateway.invalid"}))
    assert found["dns"]["ok"] is False
    found = checks(run(*args, api=api, env={"http_proxy": f"http://127.0.0.1:{free_port()}"}))
    assert found["api"]["ok"] is True, "no proxy stands before this machine itself"


def test_doctor_checks_tls(fleet: CliFleet, run: Run, tmp_path: Path, relay_to: RelayTo) -> None:
    """Plain HTTP where TLS was meant; then a certificate of nobody's; then one of an authority that is known."""
    port = fleet.api.rpartition(":")[2]
    found = checks(run("doctor", "--no-links", "-o", "json", api=f"https://127.0.0.1:{port}"))
    assert "no TLS" in found["tls"]["message"]
    assert "http://" in found["tls"]["advice"]

    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-c", TLS_SERVER, str(certificate), str(key)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = f"https://127.0.0.1:{server.stdout.readline().strip()}"
        args = ("doctor", "--no-links", "-o", "json")
        found = checks(run(*args, api=url))
        assert "invalid certificate" in found["tls"]["message"]
        assert "SSL_CERT_FILE" in found["tls"]["advice"]
        found = checks(run(*args, api=url, env={"SSL_CERT_FILE": str(certificate)}))
        assert found["tls"]["ok"] is True
        assert "renew it" in found["tls"]["message"], "two days are left"
        assert found["api"]["ok"] is False, "this server answers nobody"
        assert found["api"]["advice"]
    finally:
        server.kill()
        server.wait(10)
        assert server.stdout is not None
        server.stdout.close()


TLS_SERVER = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
while True:
    one, _ = listening.accept()
    try:
        context.wrap_socket(one, server_side=True).close()
    except OSError:
        pass
"""


def test_doctor_reports_a_gateway_without_redis(
    run: Run, tmp_path: Path, gateway_over: Callable[..., tuple[str, str, str]], wait_until: Callable[..., object]
) -> None:
    server = EmbeddedValkey(tmp_path / "valkey")
    asyncio.run(server.start())
    try:
        _, api, _ = gateway_over(tmp_path, server.url)
    finally:
        asyncio.run(server.stop())
    found = checks(run("doctor", "--no-links", "-o", "json", api=api))
    assert found["token"]["ok"] is True
    assert "cannot reach its Redis" in found["redis"]["message"]
    assert "is Redis running" in found["redis"]["advice"]


def test_doctor_reports_why_a_node_is_not_ready(run: Run, fleet: CliFleet) -> None:
    done = run("doctor", "--no-links", "--admin", fleet.api, "-o", "json", api=fleet)
    found = checks(done)
    assert "HTTP 401" in found["readyz"]["message"]
    assert "8082" in found["readyz"]["advice"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--api", "http://192.0.2.1", "--token", "t"], "--links wss://HOST"),
        (["--api", "http://127.0.0.1:4444"], "--links ws://HOST:PORT"),  # as of a demo with other ports
        (["--links", "wss://gateway.example"], "FAIRLEAD_AGENT_TOKEN"),
        (["--agent-token-file", "/nowhere/t"], "cannot be read"),
        (["--agent-token-file", "t", "--agent-token", "t"], "set only one of them"),
        (["--idle", "-1"], "idle"),
    ],
)
def test_wrong_usage_exits_with_2(run: Run, args: list[str], words: str) -> None:
    done = run("doctor", *args)
    assert done.returncode == 2
    assert words in done.stderr.decode()
