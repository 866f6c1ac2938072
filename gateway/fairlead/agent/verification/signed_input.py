"""Opens the chunks of a signed command's input: each must carry a signature by the key that signed the command.

Made for one run of a command; `Stdin` gives it every chunk in order. A captured gateway could otherwise write what it
likes into a shell that a signed command has opened.
"""

from __future__ import annotations

from fairlead.agent.errors import CommandError
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.signing.errors import SignatureRejected
from fairlead.signing.input_signature import input_to_sign, unpack_input
from fairlead.signing.keys import PublicKey


class SignedInput:
    def __init__(self, key: PublicKey, keys: TrustedKeys, agent: str, command: str, allowed: bool) -> None:
        """`key` signed the command, and must be one of `keys` as long as input arrives. `allowed` is false for a
        command that was signed to take no input."""
        self._key = key
        self._keys = keys
        self._agent = agent
        self._command = command
        self._allowed = allowed
        self._next = 0
        self._last = False

    def open(self, payload: bytes) -> bytes:
        """The data of the next chunk. Raises CommandError."""
        if not self._allowed:
            raise CommandError("input_not_allowed", "input arrived for a command that was signed to take none")
        if self._keys.find(self._key.id) is None:
            raise CommandError(
                "signature_key_unknown",
                f"this agent no longer trusts the key {self._key.id.hex()}: expected input for commands of its "
                "trusted keys only",
            )
        try:
            last, signature, data = unpack_input(payload)
        except SignatureRejected as e:
            raise CommandError(e.rejection, e.message) from e
        octets = input_to_sign(self._key.id, self._agent, self._command, self._next, last, data)
        if self._last or not self._key.verifies(signature, octets):
            raise CommandError("input_signature_invalid", f"input chunk {self._next} is not what the caller signed")
        self._next += 1
        self._last = last
        return data

    def check_end(self) -> None:
        """The gateway says that the input has ended. Raises CommandError unless the last chunk said so."""
        if self._allowed and not self._last:
            raise CommandError(
                "input_signature_invalid",
                f"the input was ended after {self._next} chunks, before the caller's last one",
            )
