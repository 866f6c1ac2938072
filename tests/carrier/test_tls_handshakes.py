"""TLS handshakes that fail, take their time, or come all at once."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from fairlead.carrier.client import connect
from fairlead.carrier.epoll.tls_transport import TlsTransport
from fairlead.carrier.http_server.admission import Abortable, Admission
from fairlead.carrier.http_server.uvicorn_server import Server, config
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.carrier.tls.tls_acceptor import HandshakingSocket

from support.carrier.listeners import RecordingListener
from support.carrier.raw_client import RawClient
from support.carrier.servers import Serve
from support.carrier.tls_site import TlsPeer, TlsSite
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def site(certificate: Path) -> TlsSite:
    return TlsSite(certificate, certificate)


def _counted(admission: Admission, count: int) -> bool:
    return len(admission) + admission.evicted == count


def _echoed(listener: RecordingListener, count: int) -> bool:
    return len(listener.messages) >= count


async def test_plain_http_is_told_to_speak_tls(
    serve_on: Serve, site: TlsSite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fairlead.carrier")
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", await serve_on(site.app, **site.options)))
    raw.write(raw.request("/link"))
    assert await raw.answer() == 400
    assert b"wss://" in await raw.body()
    assert site.certificate.failed_handshakes == 1
    assert "a TLS handshake from 127.0.0.1 failed: HTTP_REQUEST" in caplog.text
    raw.end()


async def test_the_first_octets_of_plain_http_are_enough_for_an_answer(serve_on: Serve, site: TlsSite) -> None:
    """OpenSSL has read them all."""
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", await serve_on(site.app, **site.options)))
    raw.write(b"GET /")
    assert await raw.answer() == 400
    raw.end()


@pytest.mark.parametrize("octets", [b"\x16\x03\x01\x00\x05hello", b"\x00" * 100, b"\xff" * 70_000, b"\x80\x2e\x01"])
async def test_what_is_no_handshake_is_closed(serve_on: Serve, site: TlsSite, octets: bytes) -> None:
    port = await serve_on(site.app, request_timeout=0.2, **site.options)
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    raw.write(octets)
    try:
        await raw.body()  # an alert, or nothing
    except ConnectionResetError:
        pass
    raw.end()
    listener_of_another = await site.dial(port)
    listener_of_another.write(RawClient.request("/link"))
    assert await listener_of_another.answer() == 101
    listener_of_another.end()


async def test_a_handshake_in_single_octets(serve_on: Serve, site: TlsSite) -> None:
    peer = TlsPeer(site.trust)
    await peer.open(await serve_on(site.app, request_timeout=60, **site.options))
    for octet in peer.hello():
        peer.writer.write(bytes([octet]))
        await asyncio.sleep(0)
    await peer.complete()
    peer.send(RawClient.request("/link"))
    assert (await peer.read()).startswith(b"HTTP/1.1 101 ")
    peer.writer.close()


@pytest.mark.parametrize("sent", ["nothing", "half a hello", "a hello", "a handshake"])
async def test_handshake_and_head_have_one_deadline(serve_on: Serve, site: TlsSite, sent: str) -> None:
    peer = TlsPeer(site.trust)
    await peer.open(await serve_on(site.app, request_timeout=0.3, **site.options))
    if sent == "a handshake":
        await peer.complete()
    elif sent != "nothing":
        hello = peer.hello()
        peer.writer.write(hello if sent == "a hello" else hello[:100])
    async with asyncio.timeout(20):
        try:
            while await peer.reader.read(1 << 16):
                pass
        except ConnectionResetError:
            pass
    peer.writer.close()


async def test_handshakes_count_as_connections_without_a_token(serve_on: Serve, site: TlsSite) -> None:
    admission = Admission(3, per_address=3)
    port = await serve_on(site.app, request_timeout=60, admission=admission, **site.options)
    peers = [TlsPeer(site.trust) for _ in range(5)]
    for number, peer in enumerate(peers, 1):
        await peer.open(port)
        peer.writer.write(peer.hello()[:50])
        await until(partial(_counted, admission, number))
    assert (len(admission), admission.evicted) == (3, 2)
    for peer in peers:
        peer.writer.close()
    await until(lambda: len(admission) == 0)
    links = []
    for _ in range(5):
        links.append(link := await site.dial(port))
        link.write(link.request("/link"))
        assert await link.answer() == 101
    assert (len(admission), admission.evicted) == (0, 2)
    for link in links:
        link.end()


class FailingAdmission(Admission):
    """Fails when a handshake is done."""

    def add(self, transport: Abortable, key: str) -> None:
        if isinstance(transport, TlsTransport):
            raise RuntimeError("out of order")
        super().add(transport, key)


async def test_a_connection_that_fails_after_its_handshake_leaves_the_poller(
    site: TlsSite, timer_wheel: TimerWheel, caplog: pytest.LogCaptureFixture
) -> None:
    """Its descriptor may be that of another connection by now."""
    made = config(site.app, timer_wheel=timer_wheel, admission=FailingAdmission(), **site.options)
    server = Server(made, own_signals=False)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    raw = await site.dial(server.address[1])
    raw.write(b"GET /page HTTP/1.1\r\nHost: t\r\n\r\n")
    await until(lambda: "a connection failed and is dropped" in caplog.text)
    assert made.poller is not None
    assert len(made.poller) == 0
    raw.end()
    server.should_exit = True
    await asyncio.wait_for(running, 20)


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.now = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.now += 1
        self._next = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._next.cancel()


async def test_an_open_link_is_served_between_handshakes(
    serve_on: Serve, site: TlsSite, timer_wheel: TimerWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 handshakes wait at once. No turn of the event loop does two steps, and the link is read in between."""
    port = await serve_on(site.app, request_timeout=60, **site.options)
    listener = RecordingListener()
    link = await connect(f"wss://localhost:{port}/link", listener, timer_wheel=timer_wheel, ssl=site.trust)
    peers = [TlsPeer(site.trust) for _ in range(100)]
    for peer in peers:
        await peer.open(port)
    steps: list[int] = []
    turns, step = Turns(), HandshakingSocket.ready

    def counted(accepted: HandshakingSocket, events: int) -> None:
        steps.append(turns.now)
        step(accepted, events)

    monkeypatch.setattr(HandshakingSocket, "ready", counted)
    for peer, hello in [(peer, peer.hello()) for peer in peers]:
        peer.writer.write(hello)
    link.send(b"x")
    await until(partial(_echoed, listener, 1))
    before_the_echo = len(steps)
    await until(lambda: len(steps) >= len(peers))
    turns.stop()
    assert len(set(steps)) == len(steps), "one turn did several steps"
    assert before_the_echo < len(peers), "the link waited for the handshakes of others"
    for peer in peers:
        peer.writer.close()


async def test_old_versions_and_renegotiation_are_refused(serve_on: Serve, site: TlsSite) -> None:
    port = await serve_on(site.app, **site.options)
    command = f"openssl s_client -connect 127.0.0.1:{port} -tls1_1 -cipher DEFAULT:@SECLEVEL=0"
    process = await asyncio.create_subprocess_exec(*command.split(), stdin=-3, stdout=-1, stderr=-1)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert b"alert protocol version" in errors
    command = f"openssl s_client -connect 127.0.0.1:{port} -tls1_2"
    process = await asyncio.create_subprocess_exec(*command.split(), stdin=-1, stdout=-1, stderr=-1)
    assert process.stdin is not None
    process.stdin.write(b"R\n")  # renegotiate
    await process.stdin.drain()
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert b"no renegotiation" in errors


async def test_a_key_update_is_answered(serve_on: Serve, site: TlsSite) -> None:
    port = await serve_on(site.app, request_timeout=60, **site.options)
    command = f"openssl s_client -connect 127.0.0.1:{port} -tls1_3"
    process = await asyncio.create_subprocess_exec(*command.split(), stdin=-1, stdout=-1, stderr=-1)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"GET /page HTTP/1.1\r\nHost: t\r\n\r\n")
    await asyncio.wait_for(process.stdout.readuntil(b"GET 0"), 20)
    process.stdin.write(b"K\n")  # a key update that asks for one
    await process.stdin.drain()
    await asyncio.wait_for(process.stderr.readuntil(b"KEYUPDATE"), 20)
    process.stdin.write(b"GET /page?size=7 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
    await asyncio.wait_for(process.stdout.readuntil(b"ppppppp"), 20)
    process.stdin.close()
    await asyncio.wait_for(process.wait(), 20)


async def test_the_groups_and_the_version(serve_on: Serve, site: TlsSite) -> None:
    port = await serve_on(site.app, **site.options)
    for group, accepted in (("P-256", True), ("X25519", True), ("P-384", False), ("P-521", False), ("X448", False)):
        command = f"openssl s_client -connect 127.0.0.1:{port} -groups {group}"
        process = await asyncio.create_subprocess_exec(*command.split(), stdin=-3, stdout=-1, stderr=-1)
        output, _ = await asyncio.wait_for(process.communicate(), 20)
        assert (b"New, TLSv1.3" in output) is accepted, group


async def test_the_cipher_suite_is_the_cheapest_that_the_client_offers(serve_on: Serve, site: TlsSite) -> None:
    """A client that insists on another one gets that."""
    port = await serve_on(site.app, **site.options)
    aes128, aes256, chacha = "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"
    for offered, chosen in ([aes256, chacha, aes128], aes128), ([chacha, aes256], aes256), ([chacha], chacha):
        command = f"openssl s_client -connect 127.0.0.1:{port} -ciphersuites {':'.join(offered)}"
        process = await asyncio.create_subprocess_exec(*command.split(), stdin=-3, stdout=-1, stderr=-1)
        output, _ = await asyncio.wait_for(process.communicate(), 20)
        assert f"New, TLSv1.3, Cipher is {chosen}".encode() in output, offered
