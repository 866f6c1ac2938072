"""`fairlead serve` with certificates, agents with `wss://`, and certificates that change while links are open."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.carrier.tls_site import make_certificate
from support.gateway_process import ServeProcess
from support.waiting import wait_until

PLATFORM = {"authorization": "Bearer development-platform-token"}
Started = Callable[..., ServeProcess]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path, "localhost")


@pytest.fixture
def serve(tmp_path: Path, valkey: EmbeddedValkey, files: tuple[Path, Path]) -> Iterator[Started]:
    started: list[ServeProcess] = []

    def start(*flags: str) -> ServeProcess:
        certificate, key = files
        tls = [f"--link-tls-cert={certificate}", f"--link-tls-key={key}"]
        started.append(ServeProcess(tmp_path, "secure", valkey.url, *tls, *flags))
        started[-1].wait_ready()
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def agent(tmp_path: Path, files: tuple[Path, Path]) -> Iterator[Callable[[ServeProcess], None]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(gateway: ServeProcess) -> None:
        url = f"wss://localhost:{port_of(gateway.link)}"
        arguments = ["agent", "run", "--url", url, "--id", "edge-1", "--ca-file", str(files[0])]
        token = tmp_path / "token"
        token.write_text("development-agent-token")
        with (tmp_path / "agent.log").open("wb") as log:
            command = [sys.executable, "-m", "fairlead", *arguments, "--token-file", str(token)]
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    yield start
    for process in processes:
        process.terminate()
        process.wait(30)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def subject(port: int, *authorities: Path) -> str:
    trust = ssl.create_default_context()
    for one in authorities:
        trust.load_verify_locations(one)
    sock = socket.create_connection(("127.0.0.1", port), 20)
    with trust.wrap_socket(sock, server_hostname="localhost") as secure:
        named = secure.getpeercert()
    assert named is not None
    return json.dumps(named["subject"])


def test_an_agent_over_wss_and_a_certificate_that_changes(
    serve: Started, agent: Callable[[ServeProcess], None], files: tuple[Path, Path], tmp_path: Path
) -> None:
    gateway = serve(f"--api-tls-cert={files[0]}", f"--api-tls-key={files[1]}")
    agent(gateway)
    trust = ssl.create_default_context(cafile=str(files[0]))
    other, other_key = make_certificate(tmp_path, "renewed")
    trust.load_verify_locations(other)
    url = f"https://localhost:{port_of(gateway.api)}"
    with httpx2.Client(base_url=url, headers=PLATFORM, verify=trust, timeout=30) as api:

        def state() -> object:
            return next((one["since"] for one in api.get("/v1/agents").json()["agents"] if one["state"] == "online"), 0)

        wait_until(state, 60)
        since = state()
        body = {"agent": "edge-1", "method": "sys.info"}
        posted = api.post("/v1/commands", json=body, headers={"accept": "application/x-ndjson"})
        assert posted.status_code == 200, posted.text
        assert '"hostname"' in posted.text
        files[0].write_bytes(other.read_bytes())
        files[1].write_bytes(other_key.read_bytes())
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: gateway.log().count("read the TLS certificate again") == 2, 60)
        for one in (gateway.link, gateway.api):
            assert "renewed" in subject(port_of(one), other)
        assert state() == since, "the link was dropped"
        metrics = httpx2.get(f"{gateway.admin}/metrics").text
    assert "fairlead_tls_reloads_total 2.0" in metrics
    assert 'fairlead_tls_certificate_expiry_timestamp_seconds{port="link"}' in metrics
    assert gateway.stop() == 0


def test_workers_share_tickets_and_read_certificates_again(
    serve: Started, files: tuple[Path, Path], tmp_path: Path
) -> None:
    gateway = serve("--workers=2")
    context = ssl.create_default_context(cafile=str(files[0]))
    session: ssl.SSLSession | None = None
    reused = []
    with ExitStack() as open_connections:  # of which both workers get some
        for _ in range(12):
            sock = socket.create_connection(("127.0.0.1", port_of(gateway.link)), 20)
            secure = context.wrap_socket(sock, server_hostname="localhost", session=session)
            open_connections.enter_context(secure)
            secure.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert secure.recv(1 << 16).startswith(b"HTTP/1.1 404")
            reused.append(secure.session_reused)
            session = secure.session
    assert reused == [False] + [True] * 11
    metrics = httpx2.get(f"{gateway.admin}/metrics").text
    served = re.findall(r"^fairlead_tls_handshakes_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    assert min(map(float, served)) >= 4, served
    other, other_key = make_certificate(tmp_path, "renewed")
    files[0].write_bytes(other.read_bytes())
    files[1].write_bytes(other_key.read_bytes())
    gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: gateway.log().count("read the TLS certificate again") == 2, 60)
    assert "renewed" in subject(port_of(gateway.link), other)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--link-tls-cert=a.pem"], "link_tls_cert is set without link_tls_key"),
        (["--tls-ticket-keys=a"], "no port speaks TLS"),
        (["--link-tls-cert=a.pem", "--link-tls-key=b.pem"], "No such file"),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(tmp_path: Path, flags: list[str], reason: str) -> None:
    command = [sys.executable, "-m", "fairlead", "serve", "--link-port=0", "--api-port=0", "--admin-port=0", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
