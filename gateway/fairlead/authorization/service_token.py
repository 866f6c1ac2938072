"""The text of a service token, which a program presents, and what it is compared with.

The text is `fl_ID_SECRET`. The secret has 256 random bits, so its SHA-256 cannot be inverted by guessing, and a slow
hash would only cost time. What is stored is in `fleet`. It is pure: randomness and time are arguments.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final

from fairlead.authorization.subject import Subject
from fairlead.fleet.tokens.service_tokens import ServiceToken

ID_BYTES: Final = 6
SECRET_BYTES: Final = 32
_ID = re.compile(r"[0-9a-f]{12}")
_TEXT = re.compile(rb"fl_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


def subject_of(token: ServiceToken) -> Subject:
    limit = None if token.roles is None else frozenset(token.roles)
    return Subject(f"token:{token.name}", token.name, token.id, limit, owner=token.person, tenant=token.tenant)


def new_token(draw: bytes) -> tuple[str, str, str]:
    """A new token of ID_BYTES + SECRET_BYTES random bytes: its id, its digest, and its text."""
    id, secret = draw[:ID_BYTES].hex(), base64.urlsafe_b64encode(draw[ID_BYTES:]).rstrip(b"=")
    return id, _digest(secret), f"fl_{id}_{secret.decode()}"


def split_token(text: bytes) -> tuple[str, bytes] | None:
    """The id and the secret of a token; None if the text is not one."""
    found = _TEXT.fullmatch(text)
    return None if found is None else (found[1].decode(), found[2])


def is_token_id(text: str) -> bool:
    """Whether the text has the form of an id, which is no secret."""
    return _ID.fullmatch(text) is not None


def has_secret(token: ServiceToken, secret: bytes) -> bool:
    return hmac.compare_digest(_digest(secret), token.digest)


def _digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()
