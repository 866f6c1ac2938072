"""Events, by which the operator tells of changes to a resource. Shown by `kubectl describe`."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from fairlead_operator.kube.objects import KINDS, Object, ObjectReference

COMPONENT = "fairlead-operator"
CONTROLLER = "fairlead.dev/operator"


def timestamp() -> str:
    """The wall clock's time, as Kubernetes writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def event(about: ObjectReference, severity: str, reason: str, message: str, now: str) -> Object:
    """An Event that is to be created. `severity` is Normal or Warning, `now` a `timestamp`."""
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
        "message": message[:1000],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": CONTROLLER,
    }
