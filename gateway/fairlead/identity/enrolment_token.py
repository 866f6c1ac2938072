"""Enrolment tokens: with one of them a new agent gets its first credential.

The text of a token is `fl_enrol_ID_SECRET`. The secret has 256 random bits, so its SHA-256, which is all that is
stored, cannot be inverted by guessing, and a slow hash would only cost time. A token is limited in time, in the number
of agents that it enrols, and to ids of a pattern. Whoever counts the uses must do so in one step with the enrolment.
This module is pure: randomness and time are arguments.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import re
from typing import Final

import msgspec

from fairlead.errors import InvalidRequest, Unauthorized
from fairlead.identity.agent_key import base64url

ID_BYTES: Final = 6
SECRET_BYTES: Final = 32
PATTERN_LIMIT: Final = 128
"""Characters, as an id has at most."""
WILDCARDS_LIMIT: Final = 4
"""Asterisks in a pattern, which bound the time of a comparison."""
_TEXT = re.compile(r"fl_enrol_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_ID = re.compile(r"[0-9a-f]{12}")
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]+\Z")


class EnrolmentToken(msgspec.Struct, frozen=True):
    """A token as it is stored. Times are Unix times in ms; `agents` is the pattern of the ids, `uses` the number of
    agents that it enrols, `labels` those that it gives them, `rate` how many it enrols in a minute, 0 for any number,
    and with `approval` an administrator has to approve each of them. All of them belong to `tenant`."""

    id: str
    digest: str
    created: int
    expires: int
    agents: str
    uses: int
    created_by: str = ""
    labels: dict[str, str] = {}
    rate: int = 0
    approval: bool = False
    tenant: str = ""


def new_token(draw: bytes) -> tuple[str, str, str]:
    """The id, the digest and the text of a new token, made of ID_BYTES + SECRET_BYTES random bytes."""
    if len(draw) != ID_BYTES + SECRET_BYTES:
        raise ValueError(f"an enrolment token takes {ID_BYTES + SECRET_BYTES} random bytes, got {len(draw)}")
    id, secret = draw[:ID_BYTES].hex(), base64url(draw[ID_BYTES:])
    return id, _digest(secret), f"fl_enrol_{id}_{secret}"


def is_token_id(text: str) -> bool:
    """Whether the text has the form of a token's id, which is no secret."""
    return _ID.fullmatch(text) is not None


def split_token(text: str) -> tuple[str, str] | None:
    """The id and the secret of a token; None if the text is not one."""
    found = _TEXT.fullmatch(text)
    return None if found is None else (found[1], found[2])


def check_pattern(pattern: str) -> str:
    """Return `pattern`. Raises InvalidRequest if it is no pattern of agent ids."""
    fits = len(pattern) <= PATTERN_LIMIT and pattern.count("*") <= WILDCARDS_LIMIT
    if not fits or _PATTERN.match(pattern) is None:
        raise InvalidRequest(
            f"invalid pattern of ids {pattern[:140]!r}: expected up to {PATTERN_LIMIT} characters of A-Z a-z 0-9 . _ "
            f"-, ? for any one character, and at most {WILDCARDS_LIMIT} times * for any number of them",
            field="agents",
        )
    return pattern


def check_enrolment(token: EnrolmentToken | None, secret: str, agent: str, used: int, now: int) -> None:
    """Raises Unauthorized unless `secret` is that of `token`, which may enrol `agent` at `now` when `used` others have
    enrolled. `token` is None if there is no such token. Without the secret nobody learns whether the token exists,
    for whom, or what became of it. The detail `reason` is secret, expired, agent or used.
    """
    known = hmac.compare_digest(_digest(secret), token.digest if token is not None else _digest(""))
    if token is None or not known:
        raise Unauthorized("wrong enrolment token: expected one that was created for this fleet", reason="secret")
    if now >= token.expires:
        raise Unauthorized(f"enrolment token {token.id} has expired: ask for a new one", reason="expired")
    if not fnmatch.fnmatchcase(agent, token.agents):
        raise Unauthorized(
            f"enrolment token {token.id} is for ids like {token.agents}: expected another id than {agent[:140]!r}, or "
            "another token",
            reason="agent",
        )
    if used >= token.uses:
        raise Unauthorized(
            f"enrolment token {token.id} has enrolled as many agents as it may ({token.uses}): ask for a new one",
            reason="used",
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
