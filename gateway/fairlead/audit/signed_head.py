"""The signed head of an audit log: a statement of its node that a line with this number and hash was the last one.

It is one line of text, which the node writes into the log itself, into its own log and, with the lines, to a collector.
Whoever holds the log's folder but not the key can neither make one nor remove what was noted elsewhere. It is pure:
time and key are arguments.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from fairlead.audit.records import Head
from fairlead.signing.keys import PrivateKey, PublicKey
from fairlead.signing.signed_octets import signed_octets

SIGNED: Final = "headSigned"
"""The action of the line that holds the signed head of the lines before it."""
_KIND: Final = "fairlead audit head 1"
_TEXT: Final = re.compile(
    r"fairlead-audit-head/1 node=(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,63}) line=(?P<seq>[0-9]{1,18}) "
    r"hash=(?P<hash>[0-9a-f]{64}) time=(?P<time>[0-9T:.Z-]{20,30}) key=(?P<key>[0-9a-f]{32}) "
    r"signature=(?P<signature>[A-Za-z0-9_-]{86})(?![A-Za-z0-9_-])"
)


class SignedHead(NamedTuple):
    """`key` is the id of the key that has signed, as `fairlead keys show` shows it."""

    node: str
    head: Head
    time: str
    key: str
    signature: bytes

    def __str__(self) -> str:
        signature = base64.urlsafe_b64encode(self.signature).rstrip(b"=").decode()
        return (
            f"fairlead-audit-head/1 node={self.node} line={self.head.seq} hash={self.head.hash} time={self.time} "
            f"key={self.key} signature={signature}"
        )

    def problem(self, keys: Mapping[str, PublicKey]) -> str:
        """Why none of `keys`, by their ids, vouches for it; "" if one does."""
        if (key := keys.get(self.key)) is None:
            signed = f"the head of line {self.head.seq} is signed with the key {self.key}"
            return f"{signed}, which is not one of those given"
        if not key.verifies(self.signature, _octets(self.node, self.head, self.time)):
            return f"the signature of the head of line {self.head.seq} is not valid"
        return ""


def sign_head(key: PrivateKey, node: str, head: Head, time: str) -> SignedHead:
    return SignedHead(node, head, time, key.public.id.hex(), key.sign(_octets(node, head, time)))


def find_heads(text: str) -> Iterator[SignedHead]:
    """All signed heads in a text, such as lines of a log, whatever stands around them."""
    for found in _TEXT.finditer(text):
        try:
            signature = base64.b64decode(found["signature"] + "==", b"-_", validate=True)
        except binascii.Error:
            continue
        yield SignedHead(found["node"], Head(int(found["seq"]), found["hash"]), found["time"], found["key"], signature)


def keys_by_id(keys: Collection[PublicKey]) -> dict[str, PublicKey]:
    return {one.id.hex(): one for one in keys}


def _octets(node: str, head: Head, time: str) -> bytes:
    return signed_octets(_KIND, node, head.seq, head.hash, time)
