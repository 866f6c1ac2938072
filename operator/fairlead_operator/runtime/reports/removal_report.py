"""Reports what prevents the next removal of a pod: in the status, in the condition RemovalHeld, and by an Event when it
changes.

The reconciler calls it in every pass after the decision. `until` keeps its value while nothing has changed, so that the
status is not written again because of a second of jitter.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from fairlead_operator.api.gateway_spec import LinkGatewaySpec
from fairlead_operator.api.gateway_status import RemovalStatus
from fairlead_operator.autoscaler.decision import Decision
from fairlead_operator.kube.events import timestamp
from fairlead_operator.kube.workload_status import pod_count
from fairlead_operator.runtime.reports.pass_report import PassReport
from fairlead_operator.runtime.reports.status import writes_scale

JITTER = 5.0
"""Seconds by which two passes may differ when they compute the same end."""


def report_removal(decision: Decision, spec: LinkGatewaySpec, report: PassReport) -> RemovalStatus:
    """What the status says; sets RemovalHeld."""
    hold = decision.hold
    before = report.before.decision.removal if report.before.decision is not None else RemovalStatus()
    if hold is None:
        report.conditions.set("RemovalHeld", False, "Removing", decision.reason)
        return RemovalStatus()
    until = None if hold.seconds is None else _until(report.timestamp, hold.seconds)
    if until is not None and before.until is not None and before.held_by == hold.by and _near(until, before.until):
        until = before.until
    message = f"{hold.reason}; until {until}" if until else hold.reason
    if hold.is_obstacle and decision.target.replicas < report.before.replicas:
        message = f"{pod_count(decision.target.replicas)} would suffice, but {message}"
        if before.held_by != hold.by and writes_scale(spec):
            report.add_event("RemovalHeld", message)
    report.conditions.set("RemovalHeld", True, hold.by[:1].upper() + hold.by[1:], message)
    return RemovalStatus(held_by=hold.by, reason=hold.reason, until=until)


def _until(now: str, seconds: float) -> str:
    return timestamp(datetime.fromisoformat(now) + timedelta(seconds=seconds))


def _near(one: str, other: str) -> bool:
    between = datetime.fromisoformat(one) - datetime.fromisoformat(other)
    return abs(between.total_seconds()) <= JITTER
