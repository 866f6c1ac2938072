"""Encodes and decodes messages, for one side of a link in one encoding.

The session and the SDK create one `Codec` per subprotocol and reuse it. Decoding raises ProtocolViolation and no other
exception, whatever the input is; a message of an unknown type ≥ 64 decodes to None. A payload is copied out of the
buffer in which it arrived (msgspec's `bytes` is a copy, unlike `Raw`), so it never keeps a large buffer alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from fairlead.errors import ProtocolViolation
from fairlead.wire.close_codes import CloseCode
from fairlead.wire.messages import (
    MESSAGE_LIMIT,
    RESERVED,
    SUBPROTOCOL_JSON,
    SUBPROTOCOL_MSGPACK,
    SUBPROTOCOLS,
    FromAgent,
    FromGateway,
    Message,
)


class _Head(msgspec.Struct):
    """The type number: the only field that every version of every message has."""

    t: int


M = TypeVar("M")


class Codec(Generic[M]):
    """A decoder for one direction and an encoder for both. `binary` says whether messages are binary or text."""

    __slots__ = ("_decode", "_encode", "_head", "binary", "limit", "subprotocol")

    # Any stands for a union of message types, which typing cannot express as the type of a value.
    def __init__(self, subprotocol: str, incoming: Any, limit: int = MESSAGE_LIMIT) -> None:
        self._decode: Callable[[bytes | str], M]
        self._head: Callable[[bytes | str], _Head]
        self._encode: Callable[[Message], bytes]
        self.subprotocol = subprotocol
        self.binary = subprotocol == SUBPROTOCOL_MSGPACK
        self.limit = limit
        if self.binary:
            self._decode = cast(Any, msgspec.msgpack.Decoder(incoming).decode)
            self._head = cast(Any, msgspec.msgpack.Decoder(_Head).decode)
            self._encode = msgspec.msgpack.Encoder().encode
        elif subprotocol == SUBPROTOCOL_JSON:
            self._decode = msgspec.json.Decoder(incoming).decode
            self._head = msgspec.json.Decoder(_Head).decode
            self._encode = msgspec.json.Encoder().encode
        else:
            raise ValueError(f"unknown subprotocol {subprotocol!r}: expected one of {', '.join(SUBPROTOCOLS)}")

    def encode(self, message: Message) -> bytes | str:
        """What to send as one WebSocket message: bytes on a binary link, str on a text link."""
        data = self._encode(message)
        return data if self.binary else data.decode()

    def decode(self, data: bytes | str) -> M | None:
        """The message in `data`; None for a type of a later version, which must be ignored.

        Raises ProtocolViolation with code 4501 for the other kind of WebSocket message, 1009 for a message above the
        limit, and 4500 for everything else that is not a message of this direction.
        """
        if isinstance(data, str) is self.binary:
            got, want = ("text", "binary") if self.binary else ("binary", "text")
            raise ProtocolViolation(CloseCode.ENCODING, f"{got} message on a link of {self.subprotocol}: send {want}")
        if len(data) > self.limit:
            raise ProtocolViolation(CloseCode.FRAME_TOO_BIG, f"message of {len(data)} bytes exceeds max {self.limit}")
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
            self._check_ignorable(data, e)
            return None

    def _check_ignorable(self, data: bytes | str, cause: Exception) -> None:
        """Raise ProtocolViolation unless `data` is of a type that must be ignored. Called only for invalid input."""
        try:
            kind = self._head(data).t
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            kind = -1
        if kind >= RESERVED:
            return
        what = "too deeply nested" if isinstance(cause, RecursionError) else str(cause)
        raise ProtocolViolation(
            CloseCode.PROTOCOL, f"not a message of this direction (t={kind}): {what}"[:200]
        ) from cause


def gateway_codec(subprotocol: str, limit: int = MESSAGE_LIMIT) -> Codec[FromAgent]:
    """The gateway's codec: decodes what agents send."""
    return Codec(subprotocol, FromAgent, limit)


def agent_codec(subprotocol: str, limit: int = MESSAGE_LIMIT) -> Codec[FromGateway]:
    """The agent's codec: decodes what the gateway sends."""
    return Codec(subprotocol, FromGateway, limit)
