"""A statement of the keys that agents trust from now on, signed by one that they trust already.

`fairlead keys sign` makes it, on a machine that need not be connected to anything, and an agent that gets it as the
payload of `keys.update` checks it. It holds all keys, not what has changed, so no earlier statement is needed to
understand it. Pure: the cryptography is in `keys`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from fairlead.signing.keys import PublicKey
from fairlead.signing.signed_octets import signed_octets

KIND: Final = "fairlead.keys.v1"
METHOD: Final = "keys.update"
"""The method of an agent that takes a statement."""
KEYS_LIMIT: Final = 1_000


@dataclass(frozen=True, slots=True)
class KeyStatement:
    """`agents` is the id of an agent, or the beginning of ids followed by *. Of two statements, the one with the
    greater `sequence` holds: it is the Unix time in ms at which it was signed."""

    agents: str
    sequence: int
    keys: tuple[PublicKey, ...]

    def to_sign(self, key_id: bytes) -> bytes:
        """The octets that the key with this id signs."""
        return signed_octets(KIND, key_id, self.agents, self.sequence, b"".join(one.octets for one in self.keys))

    def covers(self, agent: str) -> bool:
        """Whether the statement is for this agent."""
        if self.agents.endswith("*"):
            return agent.startswith(self.agents[:-1])
        return agent == self.agents

    def payload(self, key_id: bytes, signature: bytes) -> dict[str, object]:
        """The statement with its signature, as the members of JSON. The comments of the keys are not signed, and
        therefore not in it."""
        return {
            "agents": self.agents,
            "sequence": self.sequence,
            "keys": [PublicKey(one.octets).line() for one in self.keys],
            "key_id": key_id.hex(),
            "signature": base64.b64encode(signature).decode(),
        }
