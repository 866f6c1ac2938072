"""The files of an agent's TLS, which are replaced while it runs."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from fairlead.agent import TlsFiles
from fairlead.errors import ConfigError
from fairlead.store.embedded_valkey.server import EmbeddedValkey

from support.carrier.authority import Authority, key_pem, new_key
from support.gateway_process import ServeProcess
from support.waiting import wait_until

PLATFORM = {"authorization": "Bearer development-platform-token"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_renewed_certificate_is_read_and_a_broken_one_changes_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.client("web-1")
    files = TlsFiles(certificate, key, authority.file)
    first = files()
    assert files() is first
    key.write_bytes(key_pem(new_key()))
    assert files() is first
    assert "does not belong to the certificate" in caplog.text
    authority.write("web-1", authority.issue("web-1"))
    second = files()
    assert second is not first
    certificate.unlink()
    assert files() is second
    assert "cannot be read" in caplog.text


def test_files_that_were_never_usable_are_an_error(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.client("web-1")
    encrypted = tmp_path / "encrypted.key"
    command = f"openssl pkcs8 -topk8 -in {key} -out {encrypted} -passout pass:secret"
    subprocess.run(command.split(), check=True, capture_output=True, timeout=60)
    for files, reason in (
        (TlsFiles(certificate, tmp_path / "missing", authority.file), "cannot be read"),
        (TlsFiles(certificate, certificate, authority.file), "cannot use tls_cert"),
        (TlsFiles(certificate, encrypted, authority.file), "the key is encrypted"),
        (TlsFiles(authorities=key), "invalid ca_file"),
    ):
        with pytest.raises(ConfigError, match=reason):
            files()
    with pytest.raises(ConfigError, match="belong together"):
        TlsFiles(certificate)
    assert isinstance(TlsFiles(certificate, key, authority.file)(), ssl.SSLContext)


@pytest.fixture
def gateway(tmp_path: Path, authority: Authority, valkey: EmbeddedValkey) -> Iterator[ServeProcess]:
    certificate, key = authority.server()
    tls = (f"--link-tls-cert={certificate}", f"--link-tls-key={key}", f"--link-tls-client-ca={authority.file}")
    made = ServeProcess(tmp_path, "certified", valkey.url, *tls)
    made.wait_ready()
    yield made
    made.stop()


@pytest.fixture
def run_agent(tmp_path: Path, authority: Authority, gateway: ServeProcess) -> Iterator[Callable[..., Path]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(agent: str, *flags: str) -> Path:
        url = f"wss://localhost:{gateway.link.rpartition(':')[2]}"
        arguments = ["agent", "run", "--url", url, "--id", agent, "--ca-file", str(authority.file), *flags]
        path = tmp_path / f"{agent}-{len(processes)}.log"
        with path.open("wb") as log:
            command = [sys.executable, "-m", "fairlead", *arguments]
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        return path

    yield start
    for process in processes:
        process.terminate()
        process.wait(30)


def test_the_built_in_agent_keeps_its_link_and_comes_back_with_a_renewed_certificate(
    authority: Authority, gateway: ServeProcess, run_agent: Callable[..., Path]
) -> None:
    """The renewed certificate has another key. The old one is refused when the new one has been seen."""
    certificate, key = authority.write("web-1", authority.issue("web-1", since=-600))
    stolen = authority.folder / "stolen.crt", authority.folder / "stolen.key"
    stolen[0].write_bytes(certificate.read_bytes())
    stolen[1].write_bytes(key.read_bytes())
    log = run_agent("web-1", "--tls-cert", str(certificate), "--tls-key", str(key))
    with httpx2.Client(base_url=gateway.api, headers=PLATFORM, timeout=30, trust_env=False) as api:

        def since() -> str:
            agent = api.get("/v1/agents/web-1")
            return str(agent.json()["since"]) if agent.status_code == 200 and agent.json()["state"] == "online" else ""

        wait_until(since, 60)
        linked = since()
        authority.write("web-1", authority.issue("web-1", since=-300))
        body = {"agent": "web-1", "method": "sys.info"}
        posted = api.post("/v1/commands", json=body, headers={"accept": "application/x-ndjson"})
        assert '"hostname"' in posted.text
        assert since() == linked, "the renewal has cost the link"
        assert api.delete("/v1/agents/web-1/link").status_code in (202, 204)
        wait_until(lambda: since() not in ("", linked), 60)
        assert "read the files of TLS again" in log.read_text()
        again = since()
        thief = run_agent("web-1", "--tls-cert", str(stolen[0]), "--tls-key", str(stolen[1]))
        wait_until(lambda: "4503" in thief.read_text(), 60)
        assert since() == again


def test_an_agent_without_a_certificate_learns_what_is_missing(tmp_path: Path, run_agent: Callable[..., Path]) -> None:
    token = tmp_path / "token"
    token.write_text("development-agent-token")
    log = run_agent("web-1", "--token-file", str(token))
    wait_until(lambda: "does not accept this client's certificate" in log.read_text(), 60)
    assert "as tls_cert and tls_key" in log.read_text()
