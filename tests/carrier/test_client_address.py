"""Addresses and forwarding headers: what counts as one client, and whose headers are trusted."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.carrier.http_server.client_address import TrustedProxies, address_key, ends_of

PROXIES = TrustedProxies(["10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1%eth0", "2001:db8:1:2::/64"),
        ("", ""),
        ("not:an:address", ""),
    ],
)
def test_an_address_is_counted_under_its_key(address: str, key: str) -> None:
    assert address_key(address) == key


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ([], ""),
        ([(b"x-forwarded-for", b"192.0.2.1")], "192.0.2.1"),
        ([(b"x-forwarded-for", b"6.6.6.6, 192.0.2.1")], "192.0.2.1"),  # what a client wrote is left of what is true
        ([(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-for", b"192.0.2.1, 10.1.1.1")], "192.0.2.1"),
        ([(b"x-forwarded-for", b"10.1.1.2, 10.1.1.1")], "10.1.1.2"),
        ([(b"x-forwarded-for", b"192.0.2.1:4711")], "192.0.2.1"),
        ([(b"x-forwarded-for", b"[2001:db8::1]:4711")], "2001:db8::1"),
        ([(b"x-forwarded-for", b"192.0.2.1, junk")], ""),
        ([(b"x-forwarded-for", b"192.0.2.1, junk, 10.1.1.1")], "10.1.1.1"),
        ([(b"forwarded", b"for=6.6.6.6, for=192.0.2.1;proto=https;by=10.0.0.1")], "192.0.2.1"),
        ([(b"forwarded", b'proto=https; For="[2001:db8::1]:80"')], "2001:db8::1"),
        ([(b"forwarded", b"for=_hidden")], ""),
        ([(b"forwarded", b"for=6.6.6.6"), (b"x-forwarded-for", b"192.0.2.1")], "192.0.2.1"),
    ],
)
def test_the_client_is_the_nearest_address_that_is_not_trusted(headers: list[tuple[bytes, bytes]], client: str) -> None:
    assert PROXIES.client(headers) == client


def test_trusted_proxies_are_addresses_and_networks() -> None:
    assert "10.1.2.3" in PROXIES
    assert "::ffff:10.1.2.3" in PROXIES
    assert "fd00::1" in PROXIES
    assert "192.0.2.1" not in PROXIES
    assert "" not in PROXIES
    assert not TrustedProxies()


@given(st.lists(st.tuples(st.sampled_from([b"x-forwarded-for", b"forwarded"]), st.binary(max_size=60)), max_size=4))
def test_any_forwarded_header_gives_an_address_or_nothing(headers: list[tuple[bytes, bytes]]) -> None:
    client = PROXIES.client(headers)
    assert client == "" or address_key(client)


@given(st.text(max_size=60))
def test_any_text_gives_a_key(text: str) -> None:
    assert isinstance(address_key(text), str)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_addresses_of_both_ends_are_read_from_the_socket(family: socket.AddressFamily, host: str) -> None:
    found: asyncio.Future[tuple[object, ...]] = asyncio.get_running_loop().create_future()

    def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.set_result((*ends_of(writer.transport), *ends_of(writer.transport)))
        writer.write(b"still here")  # nothing has closed the socket that was lent
        writer.close()

    async with await asyncio.start_server(met, host, 0, family=family) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(host, port)
        mine = writer.get_extra_info("sockname")[:2]
        assert await found == ((host, port), mine) * 2
        assert await reader.read() == b"still here"
        writer.close()


async def test_a_unix_socket_has_no_addresses(tmp_path: Path) -> None:
    found: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    path = str(tmp_path / "socket")

    def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.set_result(ends_of(writer.transport))
        writer.close()

    async with await asyncio.start_unix_server(met, path):
        _, writer = await asyncio.open_unix_connection(path)
        assert await found == (None, None)
        writer.close()


async def test_a_transport_keeps_no_addresses() -> None:
    """uvloop's socket caches each address that was asked for as long as the connection lives: 290 bytes per idle
    agent."""
    reached: list[asyncio.BaseTransport] = []
    sizes: list[int] = []

    def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.get_extra_info("socket")
        reached.append(writer.transport)
        tracemalloc.start()
        try:
            for _ in range(3):
                before = tracemalloc.get_traced_memory()[0]
                ends_of(writer.transport)
                sizes.append(tracemalloc.get_traced_memory()[0] - before)
        finally:
            tracemalloc.stop()
            writer.close()

    async with await asyncio.start_server(met, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await reader.read()
        writer.close()
    assert sizes[1:] == [0, 0]
    assert sizes[0] < 200, "the addresses are kept by the transport"
