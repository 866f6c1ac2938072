"""An event of an agent as a CloudEvent (https://github.com/cloudevents/spec, version 1.0.2) in the JSON format.

Streams of events and webhooks send it. It is pure.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from fairlead.fleet.events.event_log import StoredEvent
from fairlead.tenant import local_id

LATEST: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, after which RFC 3339 has no times."""

DEPTH_RESERVE: Final = 200
"""Levels by which an event's JSON has to stay below what can be read here: it is written again inside of more, and
those who get it have parsers that read less. Whoever fails at an event fails at it again, and gets no later one."""


def cloud_event(event: StoredEvent) -> dict[str, Any]:
    """The event in the JSON format of CloudEvents: `id` is the agent's own, and unique together with `source`."""
    about: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": f"/v1/agents/{local_id(event.agent)}",
        "type": event.type,
        "agent": local_id(event.agent),
        "offset": str(event.position),
    }
    if 0 < event.at <= LATEST:
        at = datetime.fromtimestamp(event.at / 1000, UTC)
        about["time"] = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")  # as all times of the API
    if not event.payload:
        return about
    try:
        # Raw passes the payload on as it is; decoding only checks that it is JSON, and not nested too deeply.
        if event.payload.count(b"[") + event.payload.count(b"{") > DEPTH_RESERVE:
            msgspec.json.decode(b"[" * DEPTH_RESERVE + event.payload + b"]" * DEPTH_RESERVE)
        msgspec.json.decode(event.payload)
        payload = event.payload.decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {**about, "data_base64": base64.b64encode(event.payload).decode()}
    if "\n" in payload or "\r" in payload:  # a line end would end the line of the stream
        return {**about, "datacontenttype": "application/json", "data": msgspec.json.decode(event.payload)}
    return {**about, "datacontenttype": "application/json", "data": msgspec.Raw(event.payload)}
