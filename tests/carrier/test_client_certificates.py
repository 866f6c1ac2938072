"""Client certificates: which handshakes succeed, what the endpoint is told, and what a resumed session still says."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead.carrier.client import connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.carrier.tls.client_authorities import ClientAuthorities
from fairlead.carrier.tls.server_certificate import ServerCertificate
from fairlead.errors import ConfigError, ConnectionRefused

from support.carrier.authority import SERVER, Authority
from support.carrier.listeners import RecordingListener
from support.carrier.raw_client import RawClient
from support.carrier.servers import Serve
from support.carrier.tls_site import TlsPeer, TlsSite

pytestmark = pytest.mark.asyncio(loop_scope="module")

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


_PEERS: list[TlsPeer] = []


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def closed_peers() -> AsyncIterator[None]:
    yield
    while _PEERS:
        writer = _PEERS.pop().writer
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass  # the server has reset it


async def dialled(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> TlsPeer:
    peer = TlsPeer(context, session)
    await peer.open(port)
    _PEERS.append(peer)
    return peer


def site_of(authority: Authority, clients: ClientAuthorities | None) -> TlsSite:
    return TlsSite(*authority.server(), clients=clients, trust=authority.file)


def der(file: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(file.read_text())


def trusting(authority: Authority, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if files is not None:
        context.load_cert_chain(*files)
    return context


async def opened(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> TlsPeer:
    """A client whose link is open."""
    peer = await dialled(port, context, session)
    await peer.complete()
    peer.send(RawClient.request("/link"))
    assert (await peer.read()).startswith(b"HTTP/1.1 101")
    return peer


async def refused(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> str:
    """Why the server refuses the client."""
    peer = await dialled(port, context, session)
    try:
        await peer.complete()
        peer.send(RawClient.request("/link"))
        got = await peer.read()
    except ssl.SSLError as e:
        return str(e.reason)
    raise AssertionError(f"the server has answered {got!r}")


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_endpoint_is_told_the_certificate(
    serve_on: Serve, authority: Authority, version: ssl.TLSVersion, takes: bool
) -> None:
    """Directly, and by way of an HTTP connection."""
    site = site_of(authority, ClientAuthorities(authority.file))
    site.takes = takes
    files = authority.client("web-1")
    context = trusting(authority, files)
    context.maximum_version = version
    await opened(await serve_on(site.app, **site.options), context)
    assert [peer.certificate for peer in site.peers] == [der(files[0])]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_resumed_session_has_the_certificate_of_the_first_handshake(
    serve_on: Serve, authority: Authority, version: ssl.TLSVersion
) -> None:
    site = site_of(authority, ClientAuthorities(authority.file))
    port = await serve_on(site.app, **site.options)
    files, other = authority.client("web-1"), authority.client("web-2")
    context = trusting(authority, files)
    context.maximum_version = version
    first = await opened(port, context)
    second = await opened(port, context, first.tls.session)
    assert second.tls.session_reused
    context.load_cert_chain(*other)  # what a client would present now does not matter: nobody asks
    third = await opened(port, context, second.tls.session)
    assert third.tls.session_reused
    assert [peer.certificate for peer in site.peers] == [der(files[0])] * 3
    assert site.certificate.resumptions == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_ticket_of_a_port_without_client_certificates_is_worth_nothing(
    serve_on: Serve, authority: Authority, version: ssl.TLSVersion
) -> None:
    """Both ports have the same ticket keys, as in one process."""
    open_site, site = site_of(authority, None), site_of(authority, ClientAuthorities(authority.file))
    open_port, port = await serve_on(open_site.app, **open_site.options), await serve_on(site.app, **site.options)
    stranger = trusting(authority)
    stranger.maximum_version = version
    first = await opened(open_port, stranger)
    again = await opened(open_port, stranger, first.tls.session)
    assert again.tls.session_reused, "the ticket is good where it was made"
    for session in (first.tls.session, again.tls.session):
        assert await refused(port, stranger, session) in (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "SSLV3_ALERT_HANDSHAKE_FAILURE",
        )
    assert site.peers == []


async def test_a_ticket_ends_with_its_authority_and_with_a_new_revocation_list(
    serve_on: Serve, authority: Authority, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes())
    issued = authority.issue("web-1")
    files, crl = authority.write("web-1", issued), authority.revoke()
    site = site_of(authority, ClientAuthorities(trusted, crl))
    port, context = await serve_on(site.app, **site.options), trusting(authority, files)
    first = await opened(port, context)
    authority.revoke(issued[0])
    assert await site.certificate.reload()
    assert await refused(port, context, first.tls.session) == "SSLV3_ALERT_CERTIFICATE_REVOKED"
    authority.revoke()
    assert await site.certificate.reload()
    second = await opened(port, context)
    (tmp_path / "b").mkdir()
    trusted.write_bytes(Authority(tmp_path / "b", "new").file.read_bytes())
    crl.write_bytes(Authority(tmp_path / "b", "new").revoke().read_bytes())
    assert await site.certificate.reload()
    assert await refused(port, context, second.tls.session) == "TLSV1_ALERT_UNKNOWN_CA"
    second.send(RawClient.encode(0x82, b"still open"))
    assert b"still open" in await second.read(), "a reload has dropped a link"


async def test_a_long_revocation_list_is_read_beside_the_event_loop(authority: Authority) -> None:
    """With 100,000 certificates, which are 5 MB; what the thread of the event loop itself computes is measured."""
    crl = authority.revoke()
    made = ServerCertificate(*authority.server(), clients=ClientAuthorities(authority.file, crl))
    authority.revoke(others=100_000)
    assert crl.stat().st_size > 5_000_000
    before = time.thread_time()
    assert await made.reload()
    assert time.thread_time() - before < 0.05


@pytest.mark.parametrize("takes", [True, False])
async def test_a_certificate_of_outdated_authorities_is_not_shown_to_the_endpoint(
    serve_on: Serve, authority: Authority, takes: bool
) -> None:
    """The authorities change between the handshake and the request for a link."""
    crl = authority.revoke()
    site = site_of(authority, ClientAuthorities(authority.file, crl))
    site.takes = takes
    port, issued = await serve_on(site.app, **site.options), authority.issue("web-1")
    context = trusting(authority, authority.write("web-1", issued))
    before = await dialled(port, context, None)
    await before.complete()
    peer = await opened(port, context)
    assert site.peers[-1].certificate is not None
    authority.revoke(authority.issue("web-2")[0])
    assert await site.certificate.reload()
    before.send(RawClient.request("/link"))
    assert (await before.read()).startswith(b"HTTP/1.1 101")
    assert site.peers[-1].certificate is None
    peer.send(RawClient.encode(0x82, b"still open"))
    assert b"still open" in await peer.read(), "a reload has dropped a link"


async def test_several_authorities(serve_on: Serve, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    other, both = Authority(tmp_path / "b", "other"), tmp_path / "both.pem"
    both.write_bytes(authority.file.read_bytes() + other.file.read_bytes())
    site = site_of(authority, ClientAuthorities(both))
    port = await serve_on(site.app, **site.options)
    files = [authority.client("web-1"), other.client("web-2")]
    for one in files:
        await opened(port, trusting(authority, one))
    assert [peer.certificate for peer in site.peers] == [der(one[0]) for one in files]


@pytest.mark.parametrize("required", [True, False])
async def test_a_certificate_that_is_not_valid_is_refused(
    serve_on: Serve, authority: Authority, tmp_path: Path, required: bool
) -> None:
    """Also where none is required, ten times each: unknown, forged, expired, not yet valid, of a server."""
    (tmp_path / "b").mkdir()
    stranger, forger = Authority(tmp_path / "b", "stranger"), Authority(tmp_path / "b", "authority")
    site = site_of(authority, ClientAuthorities(authority.file, required=required))
    port = await serve_on(site.app, **site.options)
    cases = {
        "unknown": (stranger.client("web-1"), "TLSV1_ALERT_UNKNOWN_CA"),
        "forged": (forger.client("web-2"), "TLSV1_ALERT_DECRYPT_ERROR"),
        "expired": (authority.client("old", since=-7200, until=-3600), "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        "early": (authority.client("early", since=3600), "SSLV3_ALERT_BAD_CERTIFICATE"),
        "server": (authority.client("server-1", usage=SERVER), "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE"),
    }
    for name, (files, reason) in cases.items():
        context = trusting(authority, files)
        for _ in range(10):
            assert await refused(port, context) == reason, name
    assert site.certificate.failed_handshakes == 50
    assert site.peers == []


async def test_no_certificate_where_one_is_required_or_not(serve_on: Serve, authority: Authority) -> None:
    site = site_of(authority, ClientAuthorities(authority.file))
    reason = await refused(await serve_on(site.app, **site.options), trusting(authority))
    assert reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert site.peers == []
    optional = site_of(authority, ClientAuthorities(authority.file, required=False))
    await opened(await serve_on(optional.app, **optional.options), trusting(authority))
    assert [peer.certificate for peer in optional.peers] == [None]


async def test_a_client_learns_why(serve_on: Serve, authority: Authority, timer_wheel: TimerWheel) -> None:
    site = site_of(authority, ClientAuthorities(authority.file))
    url = f"wss://localhost:{await serve_on(site.app, **site.options)}/link"
    with pytest.raises(ConnectionRefused, match=r"does not accept this client's certificate .it asks for one.; give"):
        await connect(url, RecordingListener(), timer_wheel=timer_wheel, ssl=trusting(authority))


async def test_a_chain_of_any_length_is_not_read(serve_on: Serve, authority: Authority) -> None:
    site = site_of(authority, ClientAuthorities(authority.file))
    port = await serve_on(site.app, **site.options)
    fits, too_long = authority.issue("web-1", padding=12_000), authority.issue("web-2", padding=20_000)
    await opened(port, trusting(authority, authority.write("fits", fits)))
    await refused(port, trusting(authority, authority.write("long", too_long)))
    assert len(site.peers) == 1


async def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    server, empty, leaf = authority.server(), tmp_path / "empty.pem", authority.client("leaf")[0]
    empty.write_text("")
    for clients, reason in (
        (ClientAuthorities(tmp_path / "missing.pem"), "cannot read the TLS file"),
        (ClientAuthorities(empty), "cannot use the file of certificate authorities"),
        (ClientAuthorities(leaf), "has no certificate of an authority"),
        (ClientAuthorities(authority.file, empty), "cannot use the file of certificate revocation lists"),
        (ClientAuthorities(authority.file, authority.file), "has no revocation list"),
    ):
        with pytest.raises(ConfigError, match=reason):
            ServerCertificate(*server, clients=clients)
    await asyncio.sleep(0)
