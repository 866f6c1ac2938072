"""Certificates that are read, read again while links are open, and refused; session tickets at several servers."""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fairlead.carrier.client import connect
from fairlead.carrier.http_server.uvicorn_server import config
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.carrier.tls.server_certificate import ServerCertificate
from fairlead.carrier.tls.ticket_key_chain import OVERLAP, PERIOD, TicketKeyChain
from fairlead.errors import ConfigError

from support.carrier.listeners import RecordingListener
from support.carrier.raw_client import RawClient
from support.carrier.servers import Serve
from support.carrier.tls_site import TlsPeer, TlsSite, make_certificate
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def subject(port: int, trust: ssl.SSLContext) -> str:
    peer = TlsPeer(trust)
    await peer.open(port)
    await peer.complete()
    peer.writer.close()
    named: Any = peer.tls.getpeercert()
    return str(named["subject"][0][0][1])


async def test_a_changed_certificate_is_served_and_no_link_is_dropped(
    serve_on: Serve, timer_wheel: TimerWheel, tmp_path: Path
) -> None:
    """As Kubernetes changes a secret: a symbolic link is replaced."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        for source, target in zip(make_certificate(tmp_path, name), ("tls.crt", "tls.key"), strict=True):
            source.rename(tmp_path / name / target)
    (tmp_path / "data").symlink_to("old")
    site = TlsSite(tmp_path / "data/tls.crt", tmp_path / "data/tls.key")
    site.trust.load_verify_locations(tmp_path / "new/tls.crt")
    port = await serve_on(site.app, **site.options)
    listener = RecordingListener()
    link = await connect(f"wss://localhost:{port}/link", listener, timer_wheel=timer_wheel, ssl=site.trust)
    assert (await subject(port, site.trust), await site.certificate.reload()) == ("old", False)
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").rename(tmp_path / "data")
    assert await site.certificate.reload()
    assert await subject(port, site.trust) == "new"
    link.send(b"still here")
    await until(lambda: listener.messages == [b"still here"])
    assert (site.certificate.reloads, site.certificate.failures) == (1, 0)
    link.close()


async def test_files_that_do_not_fit_leave_the_old_ones_in_use(
    serve_on: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    other, other_key = make_certificate(tmp_path, "two")
    site = TlsSite(certificate, key)
    port = await serve_on(site.app, **site.options)
    certificate.write_bytes(other.read_bytes())
    for _ in range(3):
        assert not await site.certificate.reload()
    assert (site.certificate.reloads, site.certificate.failures) == (0, 1)
    assert caplog.text.count("does not belong to the certificate") == 1
    assert "stays in use" in caplog.text
    assert await subject(port, site.trust) == "one"
    key.write_bytes(other_key.read_bytes())
    assert await site.certificate.reload()
    site.trust.load_verify_locations(other)
    assert await subject(port, site.trust) == "two"
    key.unlink()
    assert not await site.certificate.reload()
    assert not await site.certificate.reload()
    assert (site.certificate.reloads, site.certificate.failures) == (1, 2)
    assert await subject(port, site.trust) == "two"


def lock_key(key: Path, locked: Path) -> None:
    command = f"openssl ec -in {key} -out {locked} -aes128 -passout pass:secret"
    subprocess.run(command.split(), check=True, capture_output=True, timeout=30)


async def test_files_that_cannot_be_used_at_the_start(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    _, other_key = make_certificate(tmp_path, "two")
    broken, locked = tmp_path / "broken.pem", tmp_path / "locked.key"
    broken.write_text("no certificate")
    lock_key(key, locked)
    for one, other, reason in (
        (certificate, other_key, "does not belong to the certificate"),
        (broken, key, "cannot use the TLS certificate"),
        (certificate, broken, "cannot use the TLS certificate"),
        (certificate, locked, "expected one without a password"),
        (certificate, tmp_path / "missing", "No such file"),
    ):
        with pytest.raises(ConfigError, match=reason):
            ServerCertificate(one, other)
    for text in ("", "abc", "0" * 159, "\n".join(["0" * 160] * 9)):
        broken.write_text(text)
        with pytest.raises(ConfigError, match="openssl rand -hex 80"):
            ServerCertificate(certificate, key, broken)


async def test_a_certificate_that_changes_while_it_is_read_is_read_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is read from the file once more, which may be half written by then."""
    certificate, key = make_certificate(tmp_path, "one")
    other, other_key = make_certificate(tmp_path, "two")
    made = ServerCertificate(certificate, key)
    key.write_bytes(other_key.read_bytes())
    certificate.write_bytes(other.read_bytes())
    before, context = made.expires, made.context

    def overtaken(*_: object) -> None:
        certificate.write_bytes(other.read_bytes()[:100])

    with monkeypatch.context() as patched:
        patched.setattr("fairlead.carrier.tls.openssl.set_groups", overtaken)
        assert not await made.reload()
    assert (made.failures, made.expires, made.context) == (1, before, context)
    certificate.write_bytes(other.read_bytes())
    assert await made.reload()


async def test_a_system_without_epoll_serves_no_plain_text_in_place_of_tls(
    certificate: Path, timer_wheel: TimerWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = TlsSite(certificate, certificate)
    monkeypatch.setattr("fairlead.carrier.http_server.uvicorn_server.AVAILABLE", False)
    with pytest.raises(ConfigError, match="cannot serve TLS: expected Linux"):
        config(site.app, timer_wheel=timer_wheel, **site.options)


async def test_the_end_of_a_certificate_is_known_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = make_certificate(tmp_path, "long", days=100)
    made = ServerCertificate(certificate, key)
    assert made.expires == pytest.approx(time.time() + 100 * 86_400, abs=600)
    assert caplog.text == ""
    ServerCertificate(certificate, key, wall_clock=lambda: made.expires - 5 * 86_400)
    assert "expires in 5.0 days" in caplog.text
    ServerCertificate(certificate, key, wall_clock=lambda: made.expires + 1)
    assert "has expired" in caplog.text


async def resumed(site: TlsSite, port: int, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession]:
    """Whether a connection has resumed `session`, and the session that it got a ticket for."""
    peer = TlsPeer(site.trust, session)
    await peer.open(port)
    await peer.complete()
    peer.send(RawClient.request("/link"))
    assert (await peer.read()).startswith(b"HTTP/1.1 101 ")
    peer.writer.close()
    assert peer.tls.session is not None
    return bool(peer.tls.session_reused), peer.tls.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_ticket_is_good_at_every_server_with_the_key(
    serve_on: Serve, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    old, new = os.urandom(80).hex(), os.urandom(80).hex()
    files = {"first": old, "second": f"{old}\n{new}\n", "rotated": f"{new}\n\n{old}", "done": new}
    sites: dict[str, tuple[TlsSite, int]] = {}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        site = TlsSite(certificate, key, tmp_path / name)
        site.trust.maximum_version = version
        sites[name] = (site, await serve_on(site.app, **site.options))
    first, port = sites["first"]
    trust = first.trust
    for site, _ in sites.values():
        site.trust = trust  # a session belongs to one context of the client
    _, session = await resumed(first, port, None)
    found = {}
    for name, (site, port) in sites.items():
        found[name], _ = await resumed(site, port, session)
    assert found == {"first": True, "second": True, "rotated": True, "done": False}
    assert [site.certificate.resumptions for site, _ in sites.values()] == [1, 1, 1, 0]
    # What the server with the new key first has issued is good where only the new one is left.
    _, renewed = await resumed(*sites["rotated"], session)
    assert (await resumed(*sites["done"], renewed))[0]
    assert not (await resumed(*sites["first"], renewed))[0]


async def test_ticket_keys_are_read_again(serve_on: Serve, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    file = tmp_path / "keys"
    file.write_text(os.urandom(80).hex())
    site = TlsSite(certificate, key, file)
    port = await serve_on(site.app, **site.options)
    _, session = await resumed(site, port, None)
    assert (await resumed(site, port, session))[0]
    file.write_text(os.urandom(80).hex() + "\n" + file.read_text())
    assert await site.certificate.reload()
    assert (await resumed(site, port, session))[0]
    file.write_text(os.urandom(80).hex())
    assert await site.certificate.reload()
    assert not (await resumed(site, port, session))[0]


async def test_without_a_file_a_reload_keeps_the_sessions(serve_on: Serve, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    site = TlsSite(certificate, key)
    port = await serve_on(site.app, **site.options)
    _, session = await resumed(site, port, None)
    certificate.write_bytes(certificate.read_bytes() + b"\n")
    assert await site.certificate.reload()
    assert (await resumed(site, port, session))[0]


async def test_ticket_keys_of_no_file_change_with_time(serve_on: Serve, tmp_path: Path) -> None:
    """Processes that have the same chain accept each other's tickets: for twelve hours, and for two hours more."""
    now = 0.0
    certificate, key = make_certificate(tmp_path, "localhost")

    trust = ssl.create_default_context(cafile=str(certificate))  # of the client of both

    async def process() -> tuple[TlsSite, int]:
        site = TlsSite(certificate, key)
        site.trust = trust
        site.certificate = ServerCertificate(
            certificate, key, clock=lambda: now, chain=TicketKeyChain(bytes(64), began=0.0)
        )
        return site, await serve_on(site.app, **site.options | {"certificate": site.certificate})

    one, other = await process(), await process()
    _, session = await resumed(*one, None)
    for now, good in ((0.0, True), (PERIOD - 1, True), (PERIOD, True), (PERIOD + OVERLAP, False)):
        assert not await other[0].certificate.reload(), "the certificate is the same"
        assert (await resumed(*other, session))[0] == good, now
    assert other[0].certificate.reloads == 0
    await one[0].certificate.reload()
    _, renewed = await resumed(*one, None)
    assert (await resumed(*other, renewed))[0]
