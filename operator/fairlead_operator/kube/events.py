"""Kubernetes Events, with which the operator records changes to a resource. `kubectl describe` shows them."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from fairlead_operator.kube.objects import KINDS, Object, ObjectReference

COMPONENT = "fairlead-operator"
CONTROLLER = "fairlead.dev/operator"
MOST_CHARACTERS = 1000
"""The longest message of an Event: events.k8s.io allows 1,024 characters."""


def timestamp(at: datetime | None = None) -> str:
    """The wall clock's time, or `at`, as Kubernetes writes it."""
    return (at or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z")


def event(about: ObjectReference, severity: str, reason: str, message: str, now: str) -> Object:
    """An Event to create. `severity` is Normal or Warning, `now` a `timestamp`."""
    api_version, _ = KINDS[about.kind]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name}.{secrets.token_hex(8)}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": api_version,
            "kind": about.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        },
        "type": severity,
        "reason": reason,
        "message": message[:MOST_CHARACTERS],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": CONTROLLER,
    }
