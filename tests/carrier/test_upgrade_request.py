"""What is parsed in one step means the same to the parser of HTTP, and is far less than that accepts."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.carrier.http_server.request.head import SINGLE, check_head, offered_protocol
from fairlead.carrier.http_server.request.upgrade import parse

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
PLAIN = (
    b"GET /v1/link HTTP/1.1\r\nHost: gateway.example.com:8080\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: " + KEY + b"\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: fairlead.v1.msgpack, fairlead.v1.json\r\nAuthorization: Bearer token\r\n\r\n"
)
PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b",",
    b"\0",
    b"\x7f",
    b"\xff",
    b"%2f",
    b"?x",
    b"//",
    b"Host: a\r\n",
    b"host:b\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"X-Forwarded-For: 192.0.2.1\r\n",
    b"Origin: https://a.example\r\n",
    b"Connection: close\r\n",
    b"Upgrade: h2c\r\n",
    b"Connection: keep-alive, Upgrade\r\n",
    b" folded\r\n",
    b"X: \r\n",
    b"X:\r\n",
    b"HTTP/1.0",
    b"POST",
    b"GET",
    b"websocket",
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n",
]


class Request:
    """What llhttp understands."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = b""
        self.upgraded = False
        self.parser = httptools.HttpRequestParser(self)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.upgraded = True

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """The plain form with some pieces inserted, replaced or left out, mostly where they hurt."""
    head = PLAIN
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.one_of(st.sampled_from([i + 2 for i in range(len(head)) if head[i : i + 2] == b"\r\n"]),
                            st.integers(0, len(head))))  # fmt: skip
        head = head[:at] + draw(st.sampled_from(PIECES)) + head[at + draw(st.sampled_from((0, 0, 1, 5, 30))) :]
    return head


@given(heads())
def test_what_is_parsed_means_the_same_to_the_parser_of_http(head: bytes) -> None:
    parsed = parse(head, b"/v1/link", ("192.0.2.7", 1))
    if parsed is None:
        return
    request = Request(head)
    assert request.upgraded
    assert (request.parser.get_method(), request.target, request.parser.get_http_version()) == (
        b"GET", b"/v1/link", "1.1",
    )  # fmt: skip
    assert parsed.scope["headers"] == request.headers
    assert offered_protocol(request.headers) == b"websocket"
    check_head("1.1", request.target, {n: v for n, v in request.headers if n in SINGLE}, upgrade=True)
    assert len({name for name, _ in request.headers}) == len(request.headers)
    values = dict(request.headers)
    assert (parsed.key, values[b"sec-websocket-version"]) == (values[b"sec-websocket-key"], b"13")
    assert parsed.scope["client"] == ("192.0.2.7", 1)


def test_the_plain_form() -> None:
    parsed = parse(PLAIN, b"/v1/link", None)
    assert parsed is not None
    assert parsed.key == KEY
    assert parsed.scope["subprotocols"] == ["fairlead.v1.msgpack", "fairlead.v1.json"]
    assert parsed.scope["headers"][0] == (b"host", b"gateway.example.com:8080")
    assert dict(parsed.scope["headers"])[b"authorization"] == b"Bearer token"


CHANGES: list[tuple[bytes, bytes]] = [
    (b"GET ", b"POST "),
    (b"GET ", b"get "),
    (b"/v1/link ", b"/v1/link?x=1 "),
    (b"/v1/link ", b"/v1/%6cink "),
    (b"/v1/link ", b"//v1/link "),
    (b"/v1/link ", b"/v1/link/ "),
    (b"/v1/link ", b"http://t/v1/link "),
    (b"/1.1", b"/1.0"),
    (b"Host: gateway.example.com:8080\r\n", b""),
    (b"gateway.example.com", b"user@t"),
    (b"gateway.example.com", b"a b"),
    (b"Host:", b"Host :"),
    (b"Host: ", b"Host:  "),
    (b"Host: ", b"Host:\t"),
    (b":8080", b":8080 "),
    (b":8080", b":8080\t"),
    (b"\r\nHost", b"\nHost"),
    (b"\r\nHost", b"\r\n folded\r\nHost"),
    (b"\r\nHost", b"\r\nHost: t\r\nHost"),
    (b"\r\nHost", b"\r\nX: \xc3\xa4\r\nHost"),
    (b"\r\nHost", b"\r\nX: a\0b\r\nHost"),
    (b"\r\nHost", b"\r\nX: a\rb\r\nHost"),
    (b"\r\nHost", b"\r\nX Y: a\r\nHost"),
    (b"\r\nHost", b"\r\n: a\r\nHost"),
    (b"\r\nHost", b"\r\nX\r\nHost"),
    (b"\r\nHost", b"\r\nContent-Length: 0\r\nHost"),
    (b"\r\nHost", b"\r\nTransfer-Encoding: chunked\r\nHost"),
    (b"\r\nHost", b"\r\nExpect: 100-continue\r\nHost"),
    (b"\r\nHost", b"\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(95)) + b"Host"),
    (b": websocket", b": h2c"),
    (b": websocket", b": websocket, h2c"),
    (b": Upgrade", b": close"),
    (b": Upgrade", b": close, Upgrade"),
    (b": 13", b": 8"),
    (b": 13", b": 13, 8"),
    (KEY, b"short"),
    (KEY, KEY + b"x"),
    (b"\r\n\r\n", b"\r\n"),
    (b"\r\n\r\n", b"\n\n"),
    (b"Authorization", b"Upgrade: websocket\r\nAuthorization"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: repr(change[1])[2:40])
def test_anything_else_is_left_to_the_http_connection(change: tuple[bytes, bytes]) -> None:
    assert PLAIN.count(change[0]) >= 1
    assert parse(PLAIN.replace(*change, 1), b"/v1/link", None) is None


def test_a_head_of_the_greatest_length_is_refused_in_linear_time() -> None:
    """The pattern has one way to match a line, so there is nothing to try again."""
    for filler in (b"X: " + b" \t" * 3_900, b"X: y\r\n" * 1_300, (b"X: " + b"a " * 30 + b"\r\n") * 120):
        hostile: Any = PLAIN.replace(b"\r\n\r\n", b"\r\n" + filler + b"\x00\r\n\r\n")
        assert parse(hostile, b"/v1/link", None) is None
