"""Compares what an agent sent with what the script expects. Pure. Whatever an agent may choose is ignored: boot, ids of
events, texts for people, facts, and whether defaults are written.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.mock.script import ACK, BYE, CHUNK, CREDIT, END, EVENT, HB, HELLO, Raw

NAMES = {
    1: "hello", 2: "welcome", 3: "hb", 4: "cmd", 5: "ack", 6: "chunk", 7: "end", 8: "credit", 9: "cancel", 10: "event",
    11: "rx", 12: "auth", 13: "drain", 14: "bye",
}  # fmt: skip
SECTIONS = {
    "1": "Connecting", "2": "Encoding", "3": "Messages", "4": "The conversation", "5": "Commands", "6": "Receipts",
    "7": "Credit", "8": "Resuming", "9": "Leaving", "10": "Reconnecting", "11": "Limits",
}  # fmt: skip
"""The headings of docs/protocol.md."""
_FREE = {
    HELLO: ("agent", "boot", "conn", "sdk", "facts", "resume", "caps"), EVENT: ("id", "time", "traceparent"),
    END: ("digest",), BYE: ("why", "retry"),
}  # fmt: skip
_DEFAULTS: dict[int, dict[str, Any]] = {
    HELLO: {"have": {}}, ACK: {"state": "accepted"}, CHUNK: {"payload": ""}, END: {"state": "ok", "payload": ""},
    EVENT: {"qos": 1, "payload": ""}, HB: {"ts": 0}, CREDIT: {}, BYE: {},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Violation:
    """How an agent violated the protocol. `step` counts from 1; `section` is that of docs/protocol.md."""

    message: str
    section: str
    step: int = 0
    expected: str = ""
    received: str = ""
    differs: tuple[str, ...] = ()
    note: str = ""


def show(message: Raw) -> str:
    """A message on one line, after its name."""
    text = json.dumps(message, ensure_ascii=False, separators=(", ", ": "))
    return f"{NAMES.get(message['t'], 'type ' + str(message['t']))} {text[:400]}"


def raw(message: msgspec.Struct) -> Raw:
    """A decoded message as JSON shows it."""
    made: Raw = json.loads(msgspec.json.encode(message))
    return made


def differences(expected: Raw, received: Raw) -> tuple[str, ...]:
    """The relevant differences, in words; none when `received` is what the script expects."""
    if expected["t"] != received["t"]:
        return (f"expected {_a(expected['t'])}, got {_a(received['t'])}",)
    left, right = _essence(expected), _essence(received)
    return tuple(
        f"{key}: expected {_word(left.get(key))}, got {_word(right.get(key))}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    )


def _a(kind: int) -> str:
    name = NAMES.get(kind, f"type {kind}")
    return f"an {name}" if name[0] in "aeh" and name != "hello" else f"a {name}"


def _word(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _essence(message: Raw) -> Raw:
    kind = message["t"]
    left = {**_DEFAULTS.get(kind, {}), **message}
    for name in _FREE.get(kind, ()):
        left.pop(name, None)
    if kind in (END, EVENT):
        left["payload"] = _value(left["payload"])
    if left.get("state") == "cancelled" or left.get("state") == "timeout":
        left.pop("error", None)  # it adds nothing to the state
        left.pop("payload", None)
    if isinstance(left.get("error"), dict):
        left["error"] = left["error"].get("code")
    return left


def _value(payload: str) -> object:
    """The value of a payload that is JSON: spaces and the order of members have no meaning."""
    try:
        return json.loads(base64.b64decode(payload)) if payload else None
    except (binascii.Error, ValueError):
        return payload
