"""The error of a signature that is not accepted. It becomes the error with which an agent refuses the command."""

from __future__ import annotations

from fairlead.errors import FairleadError


class SignatureRejected(FairleadError):
    """`rejection` is for programs: `signature_missing`, `signature_invalid`, `signature_key_unknown`,
    `signature_expired`, `signature_not_yet_valid`, `signature_replayed` or `signature_memory_full`."""

    code = "signature_rejected"

    def __init__(self, rejection: str, message: str, temporary: bool = False) -> None:
        super().__init__(message)
        self.rejection = rejection
        self.is_temporary = temporary
