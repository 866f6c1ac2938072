"""A node uses a Redis behind TLS: private authorities, certificates of clients, renewals of both without a restart."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from fairlead.errors import BusUnavailable
from fairlead.store.embedded_valkey.server import EmbeddedValkey
from fairlead.store.endpoint import Endpoint

from support.carrier.tls_site import make_certificate
from support.fixtures import HttpOf
from support.free_ports import free_port
from support.gateway.enrolled_agent import CLI
from support.gateway.process import MakeGateway
from support.tls_redis import TlsRedis
from support.waiting import until


async def test_a_private_authority_is_trusted_when_it_is_named(
    tls_redis: str, certificate: Path, make_gateway: MakeGateway, http_of: HttpOf
) -> None:
    gateway = await asyncio.to_thread(make_gateway, tls_redis, "--redis-ca-file", str(certificate))
    assert (await http_of(gateway.api).get("/v1/agents")).status_code == 200


async def test_a_private_authority_is_not_trusted_otherwise(tls_redis: str) -> None:
    with pytest.raises(BusUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await Endpoint(tls_redis).connect(10)


MakeTlsRedis = Callable[[Path, Path], Awaitable[TlsRedis]]


@pytest.fixture
async def make_tls_redis(own_valkey: EmbeddedValkey) -> AsyncIterator[MakeTlsRedis]:
    made: list[TlsRedis] = []

    async def make(certificate: Path, client_ca: Path) -> TlsRedis:
        made.append(TlsRedis(own_valkey.url, certificate, client_ca))
        await made[-1].start()
        return made[-1]

    yield make
    for server in made:
        await server.stop()


def pair(folder: Path, name: str, days: int = 2) -> tuple[Path, Path, Path]:
    """A certificate: its file, that of its key, and both in one file."""
    certificate, key = make_certificate(folder, name, days)
    both = folder / f"{name}.both"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return certificate, key, both


def replace(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


async def test_certificates_of_both_sides_are_renewed_without_a_restart(
    make_tls_redis: MakeTlsRedis, make_gateway: MakeGateway, http_of: HttpOf, tmp_path: Path
) -> None:
    server_certificate, _, server_both = pair(tmp_path, "server")
    own_certificate, own_key, _ = pair(tmp_path, "node")
    trusted, presented, its_key = tmp_path / "ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key"
    for path, content in ((trusted, server_certificate), (presented, own_certificate), (its_key, own_key)):
        path.write_bytes(content.read_bytes())
    server = await make_tls_redis(server_both, own_certificate)
    flags = [f"--redis-{name}-file={path}" for name, path in (("ca", trusted), ("cert", presented), ("key", its_key))]
    gateway = await asyncio.to_thread(make_gateway, server.url, *flags)
    agents = http_of(gateway.api)
    assert (await agents.get("/v1/agents")).status_code == 200
    # Everything is replaced: the server has another authority and trusts another one.
    await server.stop()
    fresh_server, _, fresh_both = pair(tmp_path, "fresh-server")
    fresh_own, fresh_key, _ = pair(tmp_path, "fresh-node")

    async def answers(status: int) -> bool:
        return (await agents.get("/v1/agents")).status_code == status

    await until(lambda: answers(503))
    for path, content in ((trusted, fresh_server), (presented, fresh_own), (its_key, fresh_key)):
        replace(path, content.read_bytes())
    server.certificate, server.client_ca = fresh_both, fresh_own
    await server.start()
    await until(lambda: answers(200))


async def test_check_says_what_is_wrong_with_tls(make_tls_redis: MakeTlsRedis, tmp_path: Path) -> None:
    certificate, _, both = pair(tmp_path, "server")
    own, key, _ = pair(tmp_path, "node")
    server = await make_tls_redis(both, own)

    async def check(url: str, *flags: str, command: tuple[str, ...] = ("redis", "check")) -> str:
        line = [*CLI, *command, "--redis", url, *flags]
        done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    ca, mine = f"--redis-ca-file={certificate}", (f"--redis-cert-file={own}", f"--redis-key-file={key}")
    assert "✓ connect  Redis answers default, with TLS" in await check(server.url, ca, *mine)
    doctor = ("doctor", "--no-links", "--api", f"http://127.0.0.1:{free_port()}")
    assert "✓ connect  Redis answers default, with TLS" in await check(server.url, ca, *mine, command=doctor)
    assert "has signed the certificate of Redis with --redis-ca-file" in await check(server.url, *mine)
    assert "name the host as its certificate does" in await check(
        server.url.replace("localhost", "127.0.0.1"), ca, *mine
    )
    assert "present one: --redis-cert-file and --redis-key-file" in await check(server.url, ca)
    strange, strange_key, _ = pair(tmp_path, "strange")
    shown = await check(server.url, ca, f"--redis-cert-file={strange}", f"--redis-key-file={strange_key}")
    assert "does Redis trust the authority of --redis-cert-file?" in shown
    shown = await check(server.url, ca, f"--redis-cert-file={own}", f"--redis-key-file={strange_key}")
    assert "name the key that belongs to the certificate" in shown
