"""Decides whether a command is what a trusted key has signed, for this agent, now, and for the first time.

Made by `Agent` when its owner pins keys; `CommandRunner` asks it about every command that is not a repetition. The
journal remembers the ids of signed commands until their signatures have expired, so that a captured gateway cannot send
one a second time, not even after a restart of the agent. Nothing here trusts what the gateway says: the time left that
it names may shorten a command and never prolong it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fairlead.agent.errors import CommandError
from fairlead.agent.journal.journal import Journal
from fairlead.agent.verification.signed_input import SignedInput
from fairlead.agent.verification.trusted_keys import TrustedKeys
from fairlead.signing.command_signature import CommandSignature, CommandTerms, unpack
from fairlead.signing.errors import SignatureRejected
from fairlead.signing.keys import PublicKey
from fairlead.wire.messages import Cmd

logger = logging.getLogger("fairlead.agent")

CLOCK_TOLERANCE_MS = 60_000
"""How far the clocks of caller and agent may differ. Hosts that synchronise theirs differ by far less than a second."""
LONGEST_MS = 9 * 86_400_000
"""The longest validity: seven days in the queue of an absent agent, one to run, one to spare. It bounds for how long an
id has to be remembered."""
LOG_INTERVAL_MS = 1_000
"""At most one line in this time: a captured gateway may send as many commands as it likes."""


@dataclass(frozen=True, slots=True)
class VerifiedCommand:
    """A command that may run, with no more time than was signed. Its id is remembered until `remember_until` (Unix
    ms); `input` opens the chunks of its input."""

    cmd: Cmd
    remember_until: int
    input: SignedInput


class CommandVerifier:
    def __init__(self, agent: str, keys: TrustedKeys, now: Callable[[], int]) -> None:
        """`now` is the wall clock in Unix ms."""
        self._agent = agent
        self._keys = keys
        self._now = now
        self.rejections: Counter[str] = Counter()
        """How many commands were refused, by the code of the refusal."""
        self._logged_at = 0
        self._unlogged = 0

    def verify(self, cmd: Cmd, journal: Journal) -> VerifiedCommand:
        """Raises CommandError with the code of the refusal unless the command may run."""
        try:
            signature, key = self._authenticated(cmd)
            now = self._check_time(signature)
            self._check_first(cmd.id, signature, journal)
        except SignatureRejected as e:
            raise self._refusal(cmd, e) from e
        return self._verified(cmd, signature, key, now)

    def verify_again(self, cmd: Cmd) -> VerifiedCommand:
        """Check a command of the journal that is about to run for a second time: its key may have been removed
        meanwhile. Raises CommandError."""
        try:
            signature, key = self._authenticated(cmd)
            now = self._check_time(signature)
        except SignatureRejected as e:
            raise self._refusal(cmd, e) from e
        return self._verified(cmd, signature, key, now)

    def _authenticated(self, cmd: Cmd) -> tuple[CommandSignature, PublicKey]:
        if not cmd.sig:
            raise SignatureRejected(
                "signature_missing",
                "this agent runs signed commands only: sign the command with a key that the agent trusts",
            )
        signature = unpack(cmd.sig)
        key = self._keys.find(signature.key_id)
        if key is None:
            raise SignatureRejected(
                "signature_key_unknown",
                f"this agent does not trust the key {signature.key_id.hex()}: expected one of its trusted_keys",
            )
        terms = CommandTerms(
            self._agent, cmd.id, cmd.method, cmd.payload, cmd.lane, cmd.retry, signature.input, signature.issued,
            signature.expires,
        )  # fmt: skip
        if not key.verifies(signature.signature, signature.covered(terms.to_sign(key.id))):
            raise SignatureRejected(
                "signature_invalid",
                "the signature is not of this command: expected one over this agent, id, method, payload, lane, retry "
                "and these times",
            )
        if not 0 <= signature.expires - signature.issued <= LONGEST_MS:
            raise SignatureRejected(
                "signature_invalid",
                f"the signature is valid for {(signature.expires - signature.issued) // 1000} s: expected 0 to "
                f"{LONGEST_MS // 1000} s",
            )
        return signature, key

    def _check_time(self, signature: CommandSignature) -> int:
        now = self._now()
        if signature.issued > now + CLOCK_TOLERANCE_MS:
            raise SignatureRejected(
                "signature_not_yet_valid",
                f"the command was signed {(signature.issued - now) // 1000} s in the future by this agent's clock: "
                f"expected at most {CLOCK_TOLERANCE_MS // 1000} s (compare the clocks)",
            )
        if now > signature.expires + CLOCK_TOLERANCE_MS:
            raise SignatureRejected(
                "signature_expired",
                f"the signature has expired {(now - signature.expires) // 1000} s ago by this agent's clock: sign the "
                "command again (and compare the clocks)",
            )
        return now

    def _check_first(self, command: str, signature: CommandSignature, journal: Journal) -> None:
        if journal.has_signed(command):
            raise SignatureRejected(
                "signature_replayed", "this agent has had a command with this id and signature before: sign a new one"
            )
        if signature.issued < journal.created:
            raise SignatureRejected(
                "signature_replayed",
                "the command was signed before this agent's journal was created, and the agent cannot know whether it "
                "has run: sign it again",
            )
        if not journal.has_room_for_signed:
            raise SignatureRejected(
                "signature_memory_full",
                "this agent remembers as many signed commands as it can: try again when some have expired",
                temporary=True,
            )

    def _verified(self, cmd: Cmd, signature: CommandSignature, key: PublicKey, now: int) -> VerifiedCommand:
        until = signature.expires + CLOCK_TOLERANCE_MS
        left = msgspec.structs.replace(cmd, deadline=min(cmd.deadline, max(0, until - now)))
        return VerifiedCommand(
            left, until, SignedInput(key, self._keys, self._agent, cmd.id, signature.input == "signed")
        )

    def _refusal(self, cmd: Cmd, rejected: SignatureRejected) -> CommandError:
        self.rejections[rejected.rejection] += 1
        now = self._now()
        if abs(now - self._logged_at) >= LOG_INTERVAL_MS:
            more = f" ({self._unlogged} more since the last line)" if self._unlogged else ""
            logger.warning(
                "refused command %s (%s): %s: %s%s", cmd.id, cmd.method, rejected.rejection, rejected.message, more
            )
            self._logged_at, self._unlogged = now, 0
        else:
            self._unlogged += 1
        return CommandError(rejected.rejection, rejected.message, rejected.is_temporary)
