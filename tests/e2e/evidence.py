"""What the cluster itself recorded: which connections came through the Ingress, and which pod wrote to the API.

The story reads it. Both logs belong to the cluster that `make cluster` starts; another cluster has none, and the story
then says what it could not prove.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support.kube import RUN

ACCESS = RUN / "log" / "traefik-access.json"
AUDIT = RUN / "log" / "audit.json"
POD_NAME = "authentication.kubernetes.io/pod-name"


@dataclass(frozen=True, slots=True)
class IngressLink:
    """One upgraded connection that came through the Ingress and has ended."""

    backend: str
    ended: datetime


def now() -> datetime:
    return datetime.now(UTC)


def links(host: str, since: datetime) -> list[IngressLink]:
    """Only a 101 has this header; Traefik shows no status of a connection that it handed over."""
    return [
        IngressLink(entry["ServiceAddr"], ended)
        for entry in _lines(ACCESS)
        if entry.get("RequestHost") == host and entry.get("downstream_Sec-Websocket-Accept")
        for ended in [_time(entry["StartUTC"]) + timedelta(microseconds=entry["Duration"] / 1000)]
        if ended >= since
    ]


def most_in_a_second(ended: list[IngressLink]) -> dict[str, int]:
    """For each backend: how many of its links ended within one second, at most."""
    times: dict[str, list[datetime]] = {}
    for link in ended:
        times.setdefault(link.backend, []).append(link.ended)
    most: Counter[str] = Counter()
    for backend, moments in times.items():
        moments.sort()
        first = 0
        for last, moment in enumerate(moments):
            while moment - moments[first] > timedelta(seconds=1):
                first += 1
            most[backend] = max(most[backend], last - first + 1)
    return dict(most)


@dataclass(frozen=True, slots=True)
class Write:
    """One write to the API that was granted."""

    at: datetime
    pod: str
    verb: str
    resource: str
    name: str


def writes(pod: str, since: datetime) -> list[Write]:
    """What the pod has written. Refused writes, of which a conflict is one, have written nothing."""
    found = []
    for entry in _lines(AUDIT):
        at = _time(entry["stageTimestamp"])
        if at < since or entry["stage"] != "ResponseComplete":
            continue
        if pod not in entry["user"].get("extra", {}).get(POD_NAME, ()) or entry["responseStatus"]["code"] >= 300:
            continue
        reference = entry.get("objectRef", {})
        resource = "/".join(part for part in (reference.get("resource"), reference.get("subresource")) if part)
        found.append(Write(at, pod, entry["verb"], resource, reference.get("name", "")))
    return found


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """The last line may be half written."""
    with log.open() as opened:
        for line in opened:
            if line.endswith("\n"):
                yield json.loads(line)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00")
