"""The id and the signature of a run whose caller has signed it, as `run_start` takes them from the body of its request.

No node has a key, so the signature itself is checked by the agents alone. What can be seen without one is checked here,
so that a mistake is told once and not by every agent.
"""

from __future__ import annotations

import base64
from typing import Final

from msgspec import UNSET

from fairlead.app.api.runs.run_schemas import NewRun
from fairlead.errors import InvalidRequest
from fairlead.signing.command_signature import ENVELOPE_BYTES, RUN_VERSION, unpack
from fairlead.signing.errors import SignatureRejected
from fairlead.wire.ids import uuid7_ms

AHEAD_MS: Final = 60_000
"""How far the caller's clock, which is in the id, may be ahead: as far as an agent lets it be for the signature."""


def signed_by(body: NewRun, key: str, now: int) -> tuple[str, bytes]:
    """The id and the signature of a signed run; both are empty for any other. `key` is its Idempotency-Key, and `now`
    is in ms. Raises InvalidRequest."""
    if body.id is UNSET and body.signature is UNSET:
        return "", b""
    if body.id is UNSET or body.signature is UNSET:
        missing = "id" if body.id is UNSET else "signature"
        raise InvalidRequest("a signed run has an id and a signature: expected both, or none of them", field=missing)
    if key:
        raise InvalidRequest(
            "a signed run is recognised by its id: expected no Idempotency-Key beside it", field="Idempotency-Key"
        )
    if body.agents is UNSET:
        raise InvalidRequest(
            "a run is signed for the agents that its caller names: expected agents, and no selector", field="agents"
        )
    if uuid7_ms(body.id) > now + AHEAD_MS:
        raise InvalidRequest(
            f"id {body.id} was made {(uuid7_ms(body.id) - now) // 1000} s in the future: expected at most "
            f"{AHEAD_MS // 1000} s (compare the clocks)",
            field="id",
        )
    return body.id, _checked(base64.b64decode(body.signature))


def _checked(signature: bytes) -> bytes:
    try:
        head = unpack(signature)
    except SignatureRejected as e:
        raise InvalidRequest(e.message, field="signature") from e
    if head.path != b"" or head.input != "none":
        raise InvalidRequest(
            f"the signature is not that of a run: expected {ENVELOPE_BYTES} octets of version {RUN_VERSION}, for "
            "commands without input",
            field="signature",
        )
    return signature
