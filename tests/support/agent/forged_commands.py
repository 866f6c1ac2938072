"""Commands that a captured gateway makes up or changes, for an agent that trusts one key; and how each is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.agent.verification.command_verifier import LONGEST_MS
from fairlead.signing.keys import PrivateKey
from fairlead.wire.messages import Cmd

from support.signing import AGENT, signed, unix_ms

TEN_MINUTES, AN_HOUR = 600_000, 3_600_000


@dataclass(frozen=True)
class CommandForger:
    """`key` is trusted by the agent and `other` is not. What the platform has signed is `method` with `payload`."""

    key: PrivateKey
    other: PrivateKey
    agent: str = AGENT
    method: str = "work"
    payload: bytes = b"{}"

    def right(self, key: PrivateKey | None = None, **terms: Any) -> Cmd:
        return signed(key or self.key, self.method, self.payload, **({"agent": self.agent} | terms))

    def _changed(self, **terms: Any) -> Callable[[], Cmd]:
        return lambda: msgspec.structs.replace(self.right(), **terms)

    def _with_signature(self, change: Callable[[bytes], bytes], **terms: Any) -> Callable[[], Cmd]:
        def make() -> Cmd:
            cmd = self.right(**terms)
            return msgspec.structs.replace(cmd, sig=change(cmd.sig))

        return make

    def forgeries(self, method: str = "hang", payload: bytes = b'{"argv":["rm"]}') -> dict[
        str, tuple[Callable[[], Cmd], str]
    ]:  # fmt: skip
        """For each kind what makes one, and the code of its refusal. The changed ones have this method or payload."""
        late: dict[str, Any] = {"issued": unix_ms() - TEN_MINUTES, "valid": 1_000}
        moved = (unix_ms() + TEN_MINUTES).to_bytes(8, "big")
        return {
            "not signed": (self._changed(sig=b""), "signature_missing"),
            "the signature stripped to nothing but zeros": (self._changed(sig=bytes(98)), "signature_invalid"),
            "half a signature": (self._with_signature(lambda sig: sig[:49]), "signature_invalid"),
            "of another command": (self._with_signature(lambda _: self.right().sig), "signature_invalid"),
            "an unknown key": (lambda: self.right(self.other), "signature_key_unknown"),
            "an unknown key that names a trusted one": (
                self._with_signature(lambda sig: sig[:2] + self.key.public.id + sig[18:], key=self.other),
                "signature_invalid",
            ),
            "moved to another agent": (lambda: self.right(agent=f"{self.agent}-2"), "signature_invalid"),
            "another id": (lambda: msgspec.structs.replace(self.right(), id=self.right().id), "signature_invalid"),
            "another method": (self._changed(method=method), "signature_invalid"),
            "another payload": (self._changed(payload=payload), "signature_invalid"),
            "the same payload with a space": (self._changed(payload=self.payload + b" "), "signature_invalid"),
            "run again if the outcome is unknown": (self._changed(retry="safe"), "signature_invalid"),
            "another lane": (self._changed(lane="bulk"), "signature_invalid"),
            "after its deadline": (lambda: self.right(**late), "signature_expired"),
            "after its deadline, which the gateway has moved": (
                self._with_signature(lambda sig: sig[:26] + moved + sig[34:], **late), "signature_invalid",
            ),
            "signed by a clock ten minutes ahead": (
                lambda: self.right(issued=unix_ms() + TEN_MINUTES), "signature_not_yet_valid",
            ),
            "signed by a clock ten minutes behind": (
                lambda: self.right(issued=unix_ms() - TEN_MINUTES), "signature_expired",
            ),
            "valid for ten days": (lambda: self.right(valid=LONGEST_MS + 1), "signature_invalid"),
            "expired before it was signed": (lambda: self.right(valid=-1), "signature_invalid"),
            "signed before the agent's journal began": (
                lambda: self.right(issued=unix_ms() - AN_HOUR, valid=2 * AN_HOUR), "signature_replayed",
            ),
        }  # fmt: skip
