"""The alerts, including those of the two objectives, and the rules file that contains them.

`__main__` writes the rules into the chart. tests/observability runs promtool on them, with a case for each alert in
which it must fire and others in which it must not, and compares each alert with its page in docs/runbooks. Alerts
identify a LinkGateway by `namespace` and `gateway`, as the dashboards do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairlead.wire.close_codes import CloseCode, CloseKind

Json = dict[str, Any]

RUNBOOKS = "docs/runbooks"
"""The path of the runbooks. The chart replaces it with `monitoring.prometheusRule.runbooks`, if that is set."""
LOST_CODES = f'code=~"{"|".join(str(code.value) for code in CloseCode if code.kind is CloseKind.LOST)}"'
"""The label matcher of all close codes that count as a lost link, according to the table of close codes."""
BY = "by (namespace, gateway)"
ON = "on (namespace, gateway)"
FEW = 10
"""At most this many bad events never raise an alert: one lost link out of five is no reason to page somebody."""
WINDOWS = {"5m": 300, "30m": 1800, "1h": 3600, "2h": 7200, "6h": 21600, "1d": 86400, "3d": 259200}
BEHIND = 10_000
"""Events that a group of readers may have before it."""
FAST = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))
"""Burn rate, long window and short window: 2 % of a month's budget in an hour, or 5 % in six hours."""
SLOW = ((3.0, "1d", "2h"), (1.0, "3d", "6h"))


@dataclass(frozen=True, slots=True)
class Objective:
    """A service level objective: the share of bad events (of commands, or of link hours) is at most `budget`."""

    name: str
    budget: float
    bad: str
    """The rate of bad events per second, with WINDOW in place of the window."""
    total: str

    def recorded(self, window: str, part: str = "ratio") -> str:
        return f"fairlead:{self.name}:{part}_rate{window}"

    def burns(self, *steps: tuple[float, str, str]) -> str:
        """The expression of an alert.

        Both windows must exceed the burn rate, so that the alert starts and ends soon, and there must be more than
        FEW bad events.
        """
        return " or ".join(
            f"({self.recorded(long)} > {round(factor * self.budget, 6)}"
            f" and {self.recorded(short)} > {round(factor * self.budget, 6)}"
            f" and {self.recorded(long, 'bad')} * {WINDOWS[long]} > {FEW})"
            for factor, long, short in steps
        )

    def rules(self) -> list[Json]:
        made = []
        for window in WINDOWS:
            bad, total = (part.replace("WINDOW", window) for part in (self.bad, self.total))
            made.append({"record": self.recorded(window, "bad"), "expr": bad})
            made.append({"record": self.recorded(window), "expr": f"{self.recorded(window, 'bad')} / ({total} > 0)"})
        return made


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    severity: str
    """critical: agents or commands are affected now, so page somebody. warning: they will be affected, or somebody
    should look today."""
    wait: str
    expr: str
    summary: str
    keep: str = ""
    """How long the alert keeps firing after its cause is gone, so that a recurring cause raises one alert."""

    def rule(self) -> Json:
        made: Json = {"alert": self.name, "expr": self.expr, "for": self.wait}
        if self.keep:
            made["keep_firing_for"] = self.keep
        made["labels"] = {"severity": self.severity}
        made["annotations"] = {"summary": self.summary, "runbook_url": f"{RUNBOOKS}/{self.name}.md"}
        return made


STAGE = "fairlead_command_stage_duration_seconds"
LATE = Objective(
    "late_deliveries",
    # 99.9 % of commands are written to the link within 0.25 s after the node has learnt of them. The time that the
    # agent takes does not count: a method may run for an hour.
    0.001,
    f'sum {BY} (rate({STAGE}_count{{stage="deliver"}}[WINDOW]))'
    f' - sum {BY} (rate({STAGE}_bucket{{stage="deliver",le="0.25"}}[WINDOW]))',
    f'sum {BY} (rate({STAGE}_count{{stage="deliver"}}[WINDOW]))',
)
LOST = Objective(
    "lost_links",
    # One of a hundred links per hour: on average, a link lasts four days before it is cut, silent or not read.
    0.01,
    f"sum {BY} (rate(fairlead_links_closed_total{{{LOST_CODES}}}[WINDOW]))",
    f"sum {BY} (avg_over_time(fairlead_links[WINDOW])) / 3600",
)
OBJECTIVES = (LATE, LOST)

WHERE = "{{ $labels.namespace }}/{{ $labels.gateway }}"
LEADS = "on (instance) (fairlead_operator_leader == 1)"


def of_leader(metric: str) -> str:
    """A gauge of the operator's leader."""
    return f"max {BY} (fairlead_operator_{metric} and {LEADS})"


ALERTS = (
    Alert("FairleadLateDeliveriesFast", "critical", "2m", LATE.burns(*FAST),
          f"{WHERE}: commands are delivered so late that the month's error budget lasts only days"),
    Alert("FairleadLateDeliveriesSlow", "warning", "15m", LATE.burns(*SLOW),
          f"{WHERE}: more commands are delivered late than the objective allows"),
    Alert("FairleadLostLinksFast", "critical", "2m", LOST.burns(*FAST),
          f"{WHERE}: so many links are lost that the month's error budget lasts only days"),
    Alert("FairleadLostLinksSlow", "warning", "15m", LOST.burns(*SLOW),
          f"{WHERE}: more links are lost than the objective allows"),
    Alert("FairleadRedisDown", "critical", "1m", f"min {BY} (fairlead_redis_up) == 0",
          f"{WHERE}: a node cannot reach Redis"),
    # The shares are those of the gateway's routing/store_memory.py; a limit of 0 is none.
    Alert("FairleadRedisFilling", "warning", "5m",
          f"max {BY} (fairlead_redis_memory_bytes) / max {BY} (fairlead_redis_memory_limit_bytes > 0) > 0.75",
          f"{WHERE}: Redis uses more than three quarters of its memory"),
    Alert("FairleadRedisFull", "critical", "1m",
          f"max {BY} (fairlead_redis_memory_bytes) / max {BY} (fairlead_redis_memory_limit_bytes > 0) > 0.9",
          f"{WHERE}: Redis is nearly full, and new commands are refused"),
    # A rewrite that failed leaves time until the disk is full; a file that cannot be written leaves none.
    Alert("FairleadRedisDiskFailing", "critical", "1m", f"max {BY} (fairlead_redis_disk_failing) > 0",
          f"{WHERE}: Redis cannot write to its disk, or cannot rewrite its append-only file"),
    Alert("FairleadRedisUnconfirmed", "critical", "1m", f"max {BY} (fairlead_redis_unconfirmed) > 0",
          f"{WHERE}: no replica of Redis, or not its disk, keeps up, so nothing new is told"),
    Alert("FairleadDataLost", "critical", "0m", f"sum {BY} (increase(fairlead_data_lost_total[15m])) > 0",
          f"{WHERE}: Redis has lost its data"),
    Alert("FairleadNodeSilent", "critical", "1m",
          "max by (namespace, gateway, pod) (fairlead_heartbeat_age_seconds) > 15",
          f"{WHERE}: {{{{ $labels.pod }}}} has sent no heartbeat for 15 s: the other nodes consider it dead"),
    Alert("FairleadNodeFenced", "warning", "0m", f"sum {BY} (increase(fairlead_node_fenced_total[1h])) > 2",
          f"{WHERE}: nodes repeatedly lose their rows in Redis"),
    # 0.85: the operator's target is 0.7, so the operator was late or is not allowed to add pods.
    Alert("FairleadNoHeadroom", "critical", "5m",
          f"sum {BY} (fairlead_links) / sum {BY} (fairlead_link_capacity) > 0.85",
          f"{WHERE}: nodes use more than 85 % of their link capacity"),
    Alert("FairleadLinksRefused", "critical", "5m",
          f'sum {BY} (rate(fairlead_handshakes_rejected_total{{reason="full"}}[5m])) > 0',
          f"{WHERE}: agents are refused because nodes are full"),
    # One a second: a single agent with a wrong token tries again about once a minute.
    Alert("FairleadTokensRefused", "warning", "10m",
          f"sum {BY} (rate(fairlead_credentials_refused_total[5m])) > 1",
          f"{WHERE}: agents or callers use tokens that are not accepted"),
    # One is enough: no agent that restarts, crashes or is restored from a backup looks like two.
    Alert("FairleadAgentCloned", "warning", "0m",
          f"sum {BY} (increase(fairlead_cloned_agents_total[1h])) > 0",
          f"{WHERE}: two copies of an agent use its key"),
    # One a second: a scraper that connects to the admin port too often is not an attack.
    Alert("FairleadConnectionsEvicted", "warning", "5m",
          f"sum {BY} (rate(fairlead_connections_evicted_total[5m])) > 1",
          f"{WHERE}: connections without a valid token are closed to make room"),
    Alert("FairleadReconnectStorm", "warning", "2m",
          f"sum {BY} (rate(fairlead_links_opened_total[2m])) > 20"
          f" and sum {BY} (rate(fairlead_links_opened_total[2m]))"
          f" > 5 * sum {BY} (rate(fairlead_links_opened_total[1h] offset 10m))",
          f"{WHERE}: links are opened at more than five times the usual rate", keep="5m"),
    # 100 per node: below that, a difference of a few agents is insignificant.
    Alert("FairleadNodeImbalance", "warning", "30m",
          f"max {BY} (fairlead_links) > 1.5 * avg {BY} (fairlead_links)"
          f" and avg {BY} (fairlead_links) > 100",
          f"{WHERE}: the fullest node has 50 % more links than the average"),
    Alert("FairleadEventLoopLag", "warning", "5m",
          "histogram_quantile(0.99, sum by (namespace, gateway, pod, le)"
          " (rate(fairlead_event_loop_lag_seconds_bucket[5m]))) > 0.1",
          f"{WHERE}: {{{{ $labels.pod }}}} does not keep up: its event loop delays everything by 0.1 s"),
    Alert("FairleadSlowReaders", "warning", "10m", f"sum {BY} (fairlead_slow_readers) > 10",
          f"{WHERE}: more than 10 agents read more slowly than the nodes send"),
    Alert("FairleadDrainOverrun", "warning", "15m",
          "max by (namespace, gateway, pod) (fairlead_draining) == 1"
          " and max by (namespace, gateway, pod) (fairlead_drain_remaining) > 0",
          f"{WHERE}: {{{{ $labels.pod }}}} has been draining for 15 minutes and still holds agents"),
    # Ten times what all readers of a group may have at once. A group whose lag shrinks is catching up by itself.
    Alert("FairleadEventGroupBehind", "warning", "10m",
          f'max by (namespace, gateway, group) (fairlead_event_group_lag{{group!~"(.*/)?~.*"}}) > {BEHIND}'
          ' and max by (namespace, gateway, group) (fairlead_event_group_lag)'
          ' >= max by (namespace, gateway, group) (fairlead_event_group_lag offset 10m)',
          f"{WHERE}: the group of readers {{{{ $labels.group }}}} has more events before it than it reads"),
    # A group takes nothing new at 1,000. The groups of sinks reach that while a receiver is away: see below.
    Alert("FairleadEventGroupFull", "warning", "10m",
          'max by (namespace, gateway, group) (fairlead_event_group_pending{group!~"(.*/)?~.*"}) > 900',
          f"{WHERE}: the readers of {{{{ $labels.group }}}} do not acknowledge the events that they take"),
    # One a second: a reader that is restarted, or was too slow once, makes some hundreds in an hour.
    Alert("FairleadEventsRedelivered", "warning", "15m",
          f"sum {BY} (rate(fairlead_event_redeliveries_total[10m])) > 1",
          f"{WHERE}: readers get events again because they do not acknowledge them in time"),
    Alert("FairleadSinkBehind", "warning", "10m",
          f'max by (namespace, gateway, group) (fairlead_event_group_lag{{group=~"(.*/)?~.*"}}) > {BEHIND}'
          ' and max by (namespace, gateway, group) (fairlead_event_group_lag)'
          ' >= max by (namespace, gateway, group) (fairlead_event_group_lag offset 10m)',
          f"{WHERE}: the sink {{{{ $labels.group }}}} gets more events than it delivers"),
    # Half of the attempts for 15 minutes: single failures are tried again, and a restart of a receiver takes minutes.
    Alert("FairleadSinkFailing", "warning", "15m",
          'sum by (namespace, gateway, sink) (rate(fairlead_event_sink_attempts_total{outcome="failed"}[10m]))'
          " > sum by (namespace, gateway, sink)"
          ' (rate(fairlead_event_sink_attempts_total{outcome="delivered"}[10m]))',
          f"{WHERE}: the receiver of sink {{{{ $labels.sink }}}} refuses more events than it accepts"),
    # One is enough: whoever receives the events has not got it, and nobody but a person sends it again.
    Alert("FairleadSinkEventsLost", "warning", "0m",
          "sum by (namespace, gateway, sink) (increase(fairlead_event_sink_dead_letters_total[1h])) > 0"
          " or sum by (namespace, gateway, sink) (increase(fairlead_event_sink_gaps_total[1h])) > 0",
          f"{WHERE}: events could not be delivered to sink {{{{ $labels.sink }}}}"),
    Alert("FairleadSpansDropped", "warning", "15m", f"sum {BY} (rate(fairlead_spans_dropped_total[5m])) > 0",
          f"{WHERE}: spans do not reach the collector"),
    # One refusal is one request that somebody made in vain; a disk that is full refuses all of them.
    Alert("FairleadAuditUnwritable", "critical", "1m",
          "sum by (namespace, gateway, pod) (rate(fairlead_audit_failures_total[5m])) > 0",
          f"{WHERE}: {{{{ $labels.pod }}}} cannot write its audit log and refuses requests"),
    # A collector that restarts is back within minutes; the lines stay in the files for as long as it takes.
    Alert("FairleadAuditExportBehind", "warning", "15m",
          "sum by (namespace, gateway, pod) (fairlead_audit_export_waiting_lines) > 0"
          " and sum by (namespace, gateway, pod) (rate(fairlead_audit_export_failures_total[10m])) > 0"
          " or sum by (namespace, gateway, pod) (increase(fairlead_audit_export_missing_lines_total[1h])) > 0",
          f"{WHERE}: the audit log of {{{{ $labels.pod }}}} does not reach the collector"),
    Alert("FairleadScaleBlockedAtMax", "warning", "10m",
          f'max {BY} (fairlead_operator_condition{{condition="ScalingLimited"}} and {LEADS}) == 1'
          f" and {of_leader('desired_replicas')} <= {of_leader('current_replicas')}",
          f"{WHERE}: more pods are needed than replicas.max allows"),
    Alert("FairleadDesiredNotMet", "warning", "15m",
          f"{of_leader('ready_replicas')} < {of_leader('desired_replicas')}",
          f"{WHERE}: fewer pods accept links than desired"),
    Alert("FairleadReportsStale", "warning", "5m", f"{of_leader('stale_reports')} > 0",
          f"{WHERE}: ready pods do not report their metrics, so the operator removes no pod"),
    Alert("FairleadWrongRemoval", "warning", "0m",
          f"sum {BY} (increase(fairlead_operator_wrong_removals_total[1h])) > 0",
          f"{WHERE}: a scale-down removed a pod that the operator had not chosen"),
    # A rebalance that changed nothing is tried again after 10 min, so this stands for as long as the cause does.
    Alert("FairleadLoadBalancerPins", "warning", "0m",
          f'sum {BY} (increase(fairlead_operator_rebalances_total{{outcome="LoadBalancerPins"}}[30m])) > 0',
          f"{WHERE}: links that are moved to other pods come back, so pods stay uneven"),
    # A Prometheus that restarts answers again within minutes. Until then nothing is scaled by it, in either direction.
    Alert("FairleadSignalQueryFailing", "warning", "10m",
          f'min {BY} (fairlead_operator_condition{{condition="PrometheusQueried"}}) == 0',
          f"{WHERE}: the Prometheus query of scaling.signals fails, so no pod is removed and none is added for it"),
    Alert("FairleadCanaryFailed", "warning", "0m",
          f'sum {BY} (increase(fairlead_operator_canaries_total{{outcome="Failed"}}[30m])) > 0',
          f"{WHERE}: a new pod template served worse than the accepted one and was withdrawn"),
    # The Job of an upgrade writes the CRDs before the operator is replaced, so this does not pass by itself.
    Alert("FairleadCrdsOutdated", "warning", "10m",
          f'min {BY} (fairlead_operator_condition{{condition="CrdsUpToDate"}}) == 0',
          f"{WHERE}: the CRDs are older than the operator, so the API server drops new fields without an error"),
    Alert("FairleadReconcileFailing", "warning", "10m",
          "sum by (namespace, reason) (rate(fairlead_operator_reconcile_failures_total[5m])) > 0",
          "The operator fails to reconcile LinkGateways: {{ $labels.reason }}"),
    Alert("FairleadOperatorNotLeading", "critical", "3m", "sum by (namespace) (fairlead_operator_leader) == 0",
          "{{ $labels.namespace }}: no replica of the operator is the leader, so nothing is scaled or repaired"),
)  # fmt: skip


def rules() -> Json:
    """The content of the rules file that Prometheus loads, and of the spec of a PrometheusRule."""
    groups: list[Json] = [
        {"name": f"fairlead.{one.name}", "interval": "30s", "rules": one.rules()} for one in OBJECTIVES
    ]
    return {"groups": [*groups, {"name": "fairlead", "rules": [one.rule() for one in ALERTS]}]}
