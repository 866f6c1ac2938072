"""The keys of an issuer over real HTTP: discovery, rotation, an issuer that is away, and one that lies."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from pathlib import Path

import pytest

from fairlead.errors import ConfigError, Unavailable
from fairlead.oidc import provider
from fairlead.oidc.issuer_keys import MAX_AGE, MIN_INTERVAL, REFRESH, RETRY, IssuerKeys, KeysUnavailable
from fairlead.oidc.issuers_file import TrustedIssuer
from fairlead.oidc.key_set import parse_key_set
from fairlead.oidc.provider import BODY_LIMIT, fetch_keys

from support.oidc.issuer import Issuer, new_key


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def source_of(issuer: Issuer, clock: Clock) -> IssuerKeys:
    return IssuerKeys(TrustedIssuer("company", issuer.url, "fairlead"), clock=clock)


async def test_keys_are_fetched_by_discovery_and_again_when_it_is_time(issuer: Issuer, clock: Clock) -> None:
    source = source_of(issuer, clock)
    with pytest.raises(KeysUnavailable, match="they were not fetched yet"):
        source.usable_keys()
    assert source.due
    await source.refresh()
    assert (set(source.usable_keys()), source.due) == ({"first"}, False)
    issuer.rotate("second")
    clock.now += REFRESH
    assert source.due
    await source.refresh()
    assert set(source.usable_keys()) == {"second"}
    assert issuer.asked == {"/.well-known/openid-configuration": 2, "/keys": 2}


async def test_an_unknown_key_is_looked_for_once_and_not_again_at_once(issuer: Issuer, clock: Clock) -> None:
    source = source_of(issuer, clock)
    await source.refresh()
    issuer.rotate("second", keep=True)
    await source.refresh(wanted=True)
    assert set(source.usable_keys()) == {"first"}, "the last fetch was only a moment ago"
    clock.now += MIN_INTERVAL
    await asyncio.gather(*(source.refresh(wanted=True) for _ in range(50)))
    assert set(source.usable_keys()) == {"first", "second"}
    assert issuer.asked["/keys"] == 2, "fifty requests waited for one fetch"
    await source.refresh(wanted=True)
    assert issuer.asked["/keys"] == 2


async def test_a_request_that_is_given_up_does_not_end_the_fetch(issuer: Issuer, clock: Clock) -> None:
    source = source_of(issuer, clock)
    waiting = asyncio.create_task(source.refresh())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await source.refresh()
    assert (set(source.usable_keys()), issuer.asked["/keys"]) == ({"first"}, 1)


async def test_keys_stay_while_the_issuer_is_away_and_not_for_ever(issuer: Issuer, clock: Clock) -> None:
    source = source_of(issuer, clock)
    await source.refresh()
    issuer.away = True
    clock.now += REFRESH
    await source.refresh()
    assert (set(source.usable_keys()), source.failures, source.due) == ({"first"}, 1, False)
    clock.now += RETRY * 1.2
    assert source.due
    clock.now = 1_000.0 + MAX_AGE + 1
    with pytest.raises(KeysUnavailable, match=r"answered with the status 503.*try again later"):
        source.usable_keys()
    issuer.away = False
    await source.refresh()
    assert set(source.usable_keys()) == {"first"}


async def test_an_issuer_that_names_another_place_or_itself_otherwise_is_not_believed(issuer: Issuer) -> None:
    for metadata, problem in (
        ({"issuer": "https://evil.example"}, "calls itself 'https://evil.example'"),
        ({"jwks_uri": "http://evil.example/keys"}, "names the address 'http://evil.example/keys'"),
        ({"jwks_uri": "file:///etc/passwd"}, "names the address 'file:///etc/passwd'"),
        ({"jwks_uri": 7}, "gave an answer that is not understood"),
        ({"padding": "x" * BODY_LIMIT}, f"answered with more than {BODY_LIMIT} bytes"),
    ):
        issuer.metadata = metadata
        with pytest.raises(Unavailable) as caught:
            await fetch_keys(issuer.url)
        assert problem in caught.value.message
    with pytest.raises(Unavailable, match="cannot be reached"):
        await fetch_keys("http://127.0.0.1:1")


def test_a_set_keeps_what_can_verify_and_leaves_out_the_rest() -> None:
    good, small = new_key("good"), new_key("small", "EC")
    public = good.as_dict(private=False)
    listed = [
        {**public, "use": "enc", "kid": "for-encryption"}, {"kty": "oct", "k": "c2VjcmV0", "kid": "symmetric"},
        {**good.as_dict(private=True), "kid": "private"}, {**public, "kid": ""}, {**public, "kid": 7},
        {"kty": "RSA", "kid": "broken", "n": "!" * 400, "e": "AQAB"},
        {"kty": "RSA", "kid": "short", "n": "sXch", "e": "AQAB"},
        {**public, "key_ops": ["encrypt"], "kid": "other-use"}, {"kty": "new", "kid": "unknown"},
        {**public, "alg": "RS256"}, small.as_dict(private=False), {**small.as_dict(private=False), "kid": "good"},
    ]  # fmt: skip
    keys = parse_key_set(json.dumps({"keys": listed}).encode(), "the issuer")
    assert {id: (key.key_type, only) for id, (key, only) in keys.items()} == {
        "good": ("RSA", "RS256"),
        "small": ("EC", ""),
    }
    for body in (b"[]", b"{}", b'{"keys": []}', b'{"keys": 7}', b"<html>", b'{"keys": [7]}'):
        with pytest.raises(Unavailable):
            parse_key_set(body, "the issuer")


async def test_reading_authorities_holds_no_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes tens of milliseconds, and anybody can have the keys fetched every few seconds."""
    threads = []

    def read(ca: Path | None) -> ssl.SSLContext:
        threads.append(threading.current_thread())
        raise ConfigError("unreadable")

    monkeypatch.setattr(provider, "trusted_context", read)
    with pytest.raises(ConfigError):
        await provider.request("GET", "https://login.example.com", None)
    assert threads
    assert threading.main_thread() not in threads
