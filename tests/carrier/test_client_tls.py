"""wss: messages, violations, and certificates that are not trusted."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from fairlead.carrier.client import connect
from fairlead.carrier.timer_wheel import TimerWheel
from fairlead.carrier.tls.server_certificate import ServerCertificate
from fairlead.errors import ConnectionRefused

from support.carrier.listeners import RecordingListener
from support.carrier.servers import AttachedApp, Serve
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


MESSAGES: list[bytes | str] = [b"", "", b"x", "tëxt", b"y" * 125, b"y" * 126, b"y" * 65536, "z" * 300_000]


async def test_client_connects_with_wss(
    serve: Serve,
    attached_app: AttachedApp,
    timer_wheel: TimerWheel,
    certificate: Path,
    no_errors: None,
) -> None:
    port = await serve(
        attached_app(lambda: RecordingListener(echo=True)), certificate=ServerCertificate(certificate, certificate)
    )
    listener = RecordingListener()
    trust = ssl.create_default_context(cafile=str(certificate))
    connection = await connect(f"wss://localhost:{port}/", listener, timer_wheel=timer_wheel, ssl=trust)
    for message in MESSAGES:
        connection.send(message)
    await until(lambda: len(listener.messages) == len(MESSAGES))
    assert listener.messages == MESSAGES
    connection.pause_reading()
    connection.resume_reading()
    connection.close(4000, "done")
    await until(lambda: listener.closed)
    assert listener.closed == [(4000, "done")]
    await until(lambda: len(timer_wheel) == 0)


async def test_a_violation_is_closed_over_tls(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, certificate: Path
) -> None:
    """TLS has no half-close: the close frame still arrives, and both ends come to an end."""
    far, near = RecordingListener(), RecordingListener()
    port = await serve(attached_app(lambda: far), certificate=ServerCertificate(certificate, certificate))
    trust = ssl.create_default_context(cafile=str(certificate))
    connection = await connect(f"wss://localhost:{port}/", near, timer_wheel=timer_wheel, ssl=trust)
    connection.write(b"\x83\x80" + bytes(4))
    await until(lambda: near.closed and far.closed)
    assert (near.closed[0][0], far.closed[0][0]) == (1002, 1002)


async def test_an_untrusted_certificate_is_refused(
    serve: Serve, attached_app: AttachedApp, timer_wheel: TimerWheel, certificate: Path
) -> None:
    port = await serve(attached_app(RecordingListener), certificate=ServerCertificate(certificate, certificate))
    with pytest.raises(ConnectionRefused, match=r"not trusted: self-signed certificate; .*ca_file") as refused:
        await connect(f"wss://localhost:{port}/", RecordingListener(), timer_wheel=timer_wheel)
    assert isinstance(refused.value.__cause__, ssl.SSLError)
