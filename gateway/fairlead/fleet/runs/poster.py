"""Who has posted something that goes on without them, such as a run that agents join later: what suffices to find out
whether they still may.

The API makes it of its caller, a run keeps it in Redis, and `authorization` asks about it. It does no I/O.
"""

from __future__ import annotations

import msgspec


class Poster(msgspec.Struct, array_like=True, frozen=True):
    """A service token by its id, a user by the issuer's claims at that moment, or an administrator."""

    subject: str
    tenant: str = ""
    administrator: bool = False
    token_id: str = ""
    issuer: str = ""
    issuer_url: str = ""
    name: str = ""
    groups: tuple[str, ...] = ()
    key_id: str = ""
    """The issuer's key that has signed these claims."""
