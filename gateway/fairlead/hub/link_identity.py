"""Who is at the other end of a link, and since when: what an idle session keeps besides the name of its agent.

Until welcome a session keeps the `LinkIdentity` itself, because the registration reads all of it. From then on it keeps
the packed form, since most links are idle: one string of octets takes half as much memory as six objects. Each reading
of it takes 0.2 µs, so whoever needs several fields reads `Session.identity` once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

NO_FACTS: Final = msgspec.msgpack.encode({})


class LinkIdentity(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the agent said in hello, and what the node added. All fields are empty before hello."""

    boot: str = ""
    """The id of the agent's process."""
    conn: int = 0
    """Which connection attempt of its process this is, from 1."""
    packed_sid: bytes = b""
    """The id of the session, in half as many octets as its text, `sid`."""
    journal: str = ""
    """The id of the agent's journal, "" if it has none."""
    packed_facts: bytes = NO_FACTS
    """The agent's facts, as `pack_facts` packs them. They are kept because Redis may lose them, and because the agent
    tells only what changes."""
    key: str = ""
    """The first characters of the thumbprint of the agent's key, "" if it came with the shared token. They tell whether
    the link is meant when a key is revoked; the whole thumbprint would be 27 bytes more for every idle link."""
    welcomed_at: float = 0.0
    """The event loop's time when welcome was sent; 0 before that."""
    issuer: str = ""
    """The first characters of the thumbprint of the key that has signed the agent's credential, "" if it has none."""
    gen: int = 0
    """The generation of the agent's claim; 0 before the claim."""

    @property
    def sid(self) -> str:
        """The id of the session as it is told, stored and shown."""
        return self.packed_sid.hex()

    @property
    def memory(self) -> str:
        """The id under which the agent remembers commands: that of its journal if it has one, otherwise `boot`."""
        return self.journal or self.boot

    @property
    def facts(self) -> bytes:
        """The agent's facts as JSON."""
        return msgspec.json.encode(unpack_facts(self.packed_facts))


KEY_CHARACTERS: Final = 16
"""Characters of a thumbprint that a link keeps: 96 bits."""
ISSUER_CHARACTERS: Final = 8
"""Characters of an issuer's thumbprint that a link keeps: 48 bits tell apart the few keys of one file."""
UNKNOWN = LinkIdentity()
unpack_facts = msgspec.msgpack.Decoder(dict[str, str]).decode
unpack_identity = msgspec.msgpack.Decoder(LinkIdentity).decode
_encoder = msgspec.msgpack.Encoder()
_buffer = bytearray()


def pack_identity(identity: LinkIdentity) -> bytes:
    """The packed form, for `unpack_identity`. It is copied out of a buffer, because the encoder's own result keeps some
    70 bytes of what was allocated for it."""
    _encoder.encode_into(identity, _buffer)
    return bytes(_buffer)


def pack_facts(facts: Mapping[str, str]) -> bytes:
    """The packed form, for `unpack_facts`: it has four octets less for each fact than JSON."""
    return _encoder.encode(facts) if facts else NO_FACTS
