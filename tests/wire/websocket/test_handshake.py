"""The opening handshake as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import ConnectionRefused
from fairlead.wire.websocket import handshake
from fairlead.wire.websocket.handshake import Agreement, Response

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
GOOD = {
    "upgrade": "websocket",
    "connection": "Upgrade",
    "sec-websocket-accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
}


def test_accept_key_of_the_rfc_example() -> None:
    """RFC 6455 §1.3."""
    assert handshake.accept_key(KEY) == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert handshake.new_key(b"the sample nonce") == KEY


@pytest.mark.parametrize(
    ("key", "good"),
    [
        (KEY, True),
        (b"", False),
        (b"x" * 24, False),
        (KEY[:-4], False),
        (b"!" + KEY[1:], False),
        (b"A" * 32, False),
    ],
)
def test_websocket_keys_are_validated(key: bytes, good: bool) -> None:
    assert handshake.is_key(key) is good


def test_request_has_the_headers_of_rfc_6455() -> None:
    head = handshake.request(
        "gate.example:8443",
        "/v1/link?x=1",
        KEY,
        subprotocols=["a", "b"],
        headers=[("Authorization", "Bearer t")],
    )
    request, *lines = head.decode().split("\r\n")
    assert request == "GET /v1/link?x=1 HTTP/1.1"
    assert lines[-2:] == ["", ""]
    assert {
        "Host: gate.example:8443",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {KEY.decode()}",
        "Sec-WebSocket-Protocol: a, b",
        "Authorization: Bearer t",
    } == set(lines[:-2])


@pytest.mark.parametrize(
    ("name", "value"), [("X", "a\r\nEvil: b"), ("X\r\nEvil", "b"), ("", "b"), ("X Y", "b"), ("X", "a\x00")]
)
def test_a_header_cannot_inject_lines(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"header name|control character"):
        handshake.request("h", "/", KEY, headers=[(name, value)])


def test_a_target_cannot_inject_lines() -> None:
    with pytest.raises(ValueError, match="control character"):
        handshake.request("h", "/ HTTP/1.1\r\nEvil: x", KEY)


def test_a_response_may_arrive_in_any_chunks() -> None:
    data = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nX: 1\r\nx:  2 \r\n\r\nrest"
    end = data.index(b"rest")
    for length in range(end):
        assert handshake.parse_response(data[:length]) is None
    assert handshake.parse_response(data) == (Response(101, {"upgrade": "websocket", "x": "1, 2"}), b"rest")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/2 101 x\r\n\r\n",
        b"HTTP/1.1 one\r\n\r\n",
        b"HTTP/1.1 101 x\r\nno colon\r\n\r\n",
        b"HTTP/1.1 101 x\r\nbad name: x\r\n\r\n",
        b"HTTP/1.1 101 x\r\n folded\r\n\r\n",
        b"HTTP/1.1 101 x\r\nx: a\x00b\r\n\r\n",
        b"HTTP/1.1 101 x\r\nx: " + b"y" * handshake.MAX_HEAD,
    ],
)
def test_data_that_is_not_a_response_is_refused(data: bytes) -> None:
    with pytest.raises(ConnectionRefused):
        handshake.parse_response(data)


@given(st.binary(max_size=300))
def test_arbitrary_responses_are_refused_or_incomplete(data: bytes) -> None:
    for head in (data, b"HTTP/1.1 101 x\r\n" + data + b"\r\n\r\n"):
        try:
            parsed = handshake.parse_response(head)
        except ConnectionRefused:
            continue
        if parsed is not None:
            with pytest.raises(ConnectionRefused):
                handshake.agreement(parsed[0], KEY)


def test_a_valid_response_is_accepted() -> None:
    assert handshake.agreement(Response(101, GOOD), KEY) == Agreement(None, False)
    chosen = Response(101, GOOD | {"connection": "keep-alive, upgrade", "sec-websocket-protocol": "b"})
    assert handshake.agreement(chosen, KEY, ["a", "b"]) == Agreement("b", False)


@pytest.mark.parametrize(
    "change",
    [
        {"upgrade": "h2c"},
        {"upgrade": ""},
        {"connection": "keep-alive"},
        {"sec-websocket-accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOO="},
        {"sec-websocket-accept": ""},
        {"sec-websocket-protocol": "c"},
        {"sec-websocket-extensions": "permessage-deflate; server_no_context_takeover"},
        {"sec-websocket-extensions": "x-unknown"},
    ],
)
def test_invalid_responses_fail_the_connection(change: dict[str, str]) -> None:
    with pytest.raises(ConnectionRefused):
        handshake.agreement(Response(101, GOOD | change), KEY, ["a", "b"])


@pytest.mark.parametrize(
    ("extensions", "good"),
    [
        (handshake.DEFLATE, True),
        ("permessage-deflate; server_no_context_takeover", True),
        ("permessage-deflate; server_no_context_takeover; server_max_window_bits=12", True),
        ("permessage-deflate", False),
        ("permessage-deflate; client_no_context_takeover", False),
        ("permessage-deflate; server_no_context_takeover; client_max_window_bits=9", False),
        ("x-webkit-deflate-frame", False),
    ],
)
def test_deflate_responses_are_accepted_or_refused(extensions: str, good: bool) -> None:
    response = Response(101, GOOD | {"sec-websocket-extensions": extensions})
    if good:
        assert handshake.agreement(response, KEY, deflate=True) == Agreement(None, True)
    else:
        with pytest.raises(ConnectionRefused):
            handshake.agreement(response, KEY, deflate=True)


BOUNDED = handshake.DEFLATE + "; server_max_window_bits=12"


@pytest.mark.parametrize(
    ("offers", "answer"),
    [
        ("permessage-deflate", handshake.DEFLATE),
        ("permessage-deflate; client_max_window_bits", handshake.DEFLATE),
        ("permessage-deflate; client_max_window_bits=10", handshake.DEFLATE),
        ('permessage-deflate; server_max_window_bits="15"', BOUNDED),
        ("permessage-deflate; server_max_window_bits=9", None),
        ("permessage-deflate; server_max_window_bits", None),
        ("permessage-deflate; server_max_window_bits=9, permessage-deflate", handshake.DEFLATE),
        ("permessage-deflate; server_no_context_takeover=1", None),
        ("permessage-deflate; unknown", None),
        ("permessage-deflate; server_no_context_takeover; server_no_context_takeover", None),
        ("x-other, permessage-deflate", handshake.DEFLATE),
        ("x-other", None),
        ("", None),
    ],
)
def test_deflate_offers_are_accepted_or_ignored(offers: str, answer: str | None) -> None:
    assert handshake.accept_deflate(offers) == answer


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("30", 30.0),
        ("0", 0.0),
        ("-3", None),
        ("soon", None),
        ("1e9", None),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
    ],
)
def test_retry_after_is_parsed(value: str | None, seconds: float | None) -> None:
    now = 1445412480.0  # Wed, 21 Oct 2015 07:28:00 GMT
    assert handshake.retry_after(value, now) == seconds


def test_a_refusal_body_is_read_by_its_length() -> None:
    response = Response(503, {"content-length": "5"})
    assert handshake.refusal_body(response, b"hel", ended=False) is None
    assert handshake.refusal_body(response, b"hel", ended=True) == b"hel"
    assert handshake.refusal_body(response, b"hello and more", ended=False) == b"hello"
    endless = Response(503, {"content-length": "9" * 5_000})  # more digits than Python makes a number of
    assert handshake.refusal_body(endless, b"hello", ended=True) == b"hello"


def test_a_refusal_body_is_read_until_the_end() -> None:
    response = Response(503, {})
    assert handshake.refusal_body(response, b"page", ended=False) is None
    assert handshake.refusal_body(response, b"page", ended=True) == b"page"
    assert handshake.refusal_body(response, b"x" * 10_000, ended=False) == b"x" * handshake.MAX_BODY


def test_a_chunked_refusal_body_is_read() -> None:
    response = Response(503, {"transfer-encoding": "chunked"})
    data = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
    for length in range(data.index(b"0\r\n\r\n") + 2):
        assert handshake.refusal_body(response, data[:length], ended=False) is None
    assert handshake.refusal_body(response, data, ended=False) == b"hello world"
    assert handshake.refusal_body(response, b"zz\r\nhello", ended=False) == b""


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_chunked_bodies_do_not_crash(data: bytes, ended: bool) -> None:
    body = handshake.refusal_body(Response(503, {"transfer-encoding": "chunked"}), data, ended=ended)
    assert body is None or len(body) <= handshake.MAX_BODY
