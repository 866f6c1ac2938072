"""Addresses and forwarding headers: what is counted as one client, and whom a header is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.carrier.http_server.client_address import TrustedProxies, address_key

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
def test_keys(address: str, key: str) -> None:
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
def test_the_nearest_that_is_not_trusted(headers: list[tuple[bytes, bytes]], client: str) -> None:
    assert PROXIES.client(headers) == client


def test_who_is_trusted() -> None:
    assert "10.1.2.3" in PROXIES
    assert "::ffff:10.1.2.3" in PROXIES
    assert "fd00::1" in PROXIES
    assert "192.0.2.1" not in PROXIES
    assert "" not in PROXIES
    assert not TrustedProxies()


@given(st.lists(st.tuples(st.sampled_from([b"x-forwarded-for", b"forwarded"]), st.binary(max_size=60)), max_size=4))
def test_any_header_gives_an_address_or_nothing(headers: list[tuple[bytes, bytes]]) -> None:
    client = PROXIES.client(headers)
    assert client == "" or address_key(client)


@given(st.text(max_size=60))
def test_any_text_has_a_key(text: str) -> None:
    assert isinstance(address_key(text), str)
