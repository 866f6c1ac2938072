"""What a webhook sends, and when it tries again, as Standard Webhooks (https://www.standardwebhooks.com) asks for.

The headers carry an id that is the same for every attempt, the time of the attempt, and a signature with each secret of
the sink, so that a receiver may know the old or the new one while a secret is replaced. It is pure.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

import msgspec

from fairlead.fleet.events.event_log import StoredEvent
from fairlead.routing.events.cloud_event import cloud_event

CONTENT_TYPE: Final = "application/cloudevents+json"
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 3_600.0
"""Seconds before the second attempt, which double with each further one."""

_encode = msgspec.json.Encoder().encode


def body_of(event: StoredEvent) -> bytes:
    """The event as a CloudEvent in structured mode."""
    return _encode(cloud_event(event))


def message_id(event: StoredEvent) -> str:
    """The same for each attempt, and for an event that the agent has sent twice. It is a digest, because the ids of
    agents and events may contain the dot that ends an id in what is signed."""
    return f"evt_{hashlib.sha256(f'{event.agent} {event.id}'.encode()).hexdigest()[:32]}"


def headers_of(id: str, now: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """The headers of an attempt at the time `now`, in seconds since 1970."""
    signed = b"%b.%d.%b" % (id.encode(), now, body)
    signatures = (base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets)
    return {
        "content-type": CONTENT_TYPE,
        "user-agent": "fairlead",
        "webhook-id": id,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def pause_after(attempt: int, retry_for: float, chance: float, asked: float = 0.0) -> float | None:
    """Seconds from a failed attempt, counted from 1, to the next one; None if there is none, because the pauses before
    it add up to more than `retry_for`. `chance` is from 0 to 1, and takes up to half of the pause away. `asked` is the
    pause that the receiver asked for."""
    if attempt > 60 or sum(_pause(one) for one in range(1, attempt + 1)) > retry_for:
        return None
    return max(_pause(attempt) * (1.0 - chance / 2), min(asked, LONGEST_PAUSE))


def _pause(attempt: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(attempt - 1, 20), LONGEST_PAUSE)
