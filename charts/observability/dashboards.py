"""The four dashboards: Overview, Nodes, Autoscaling, Redis and tracing.

`__main__` writes them into the chart. tests/observability runs every query against a real Prometheus and checks that
every metric exists in the registry of the gateway or the operator. All pods of one LinkGateway have the same labels
`namespace` and `gateway`: the chart's PodMonitor adds them to the gateway's metrics, and the operator's metrics have
them already.
"""

from __future__ import annotations

from alerts import LOST_CODES
from panels import Dashboard, Panel, Query, Row, Variable

FLEET = 'namespace=~"$namespace",gateway=~"$gateway"'
NODE = f'{FLEET},pod=~"$pod"'
RATE = "[$__rate_interval]"

NAMESPACE = Variable("namespace", "label_values(fairlead_build_info, namespace)")
GATEWAY = Variable("gateway", 'label_values(fairlead_build_info{namespace=~"$namespace"}, gateway)')
POD = Variable("pod", f"label_values(fairlead_build_info{{{FLEET}}}, pod)")
# The operator also reports LinkGateways that have no pod yet.
SCALED = (
    Variable("namespace", "label_values(fairlead_operator_desired_replicas, namespace)"),
    Variable("gateway", 'label_values(fairlead_operator_desired_replicas{namespace=~"$namespace"}, gateway)'),
)


def quantiles(histogram: str, where: str, by: str = "", *, shares: tuple[float, ...] = (0.5, 0.95, 0.99),
              exemplars: bool = False) -> tuple[Query, ...]:  # fmt: skip
    labels = f"le, {by}" if by else "le"
    name = f"{{{{{by}}}}} " if by else ""
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{{where}}}{RATE})))",
            f"{name}p{share * 100:g}",
            exemplars,
        )
        for share in shares
    )


def rate(counter: str, where: str, by: str, legend: str = "") -> Query:
    return Query(f"sum by ({by}) (rate({counter}{{{where}}}{RATE}))", legend or f"{{{{{by}}}}}")


def of_leader(metric: str, by: str = "namespace, gateway") -> str:
    """A gauge of the operator's leader. The values of a replica that has lost the lease are out of date."""
    leads = "on (instance) (fairlead_operator_leader == 1)"
    return f"max by ({by}) (fairlead_operator_{metric}{{{FLEET}}} and {leads})"


def stat(title: str, unit: str, description: str, expr: str) -> Panel:
    return Panel(title, unit, description, (Query(expr, title),), "stat", 4)


OVERVIEW = Dashboard(
    "overview",
    "Fairlead / Overview",
    "The state of the fleet: links, commands, errors and spare capacity.",
    (
        Row("Now", (
            stat("Links", "short", "Open links.", f"sum(fairlead_links{{{FLEET}}})"),
            stat("Agents", "short", "Agents that nodes hold.", f"sum(fairlead_agents{{{FLEET}}})"),
            stat("Capacity in use", "percentunit", "Share of the link capacity that is in use.",
                 f"sum(fairlead_links{{{FLEET}}}) / sum(fairlead_link_capacity{{{FLEET}}})"),
            stat("Nodes", "short", "Nodes that Prometheus scrapes.", f"count(fairlead_build_info{{{FLEET}}})"),
            stat("Redis", "short", "1 while Redis answers all nodes.", f"min(fairlead_redis_up{{{FLEET}}})"),
            stat("Leaving", "short", "Agents that draining nodes still have to disconnect.",
                 f"sum(fairlead_drain_remaining{{{FLEET}}})"),
        )),
        Row("Links", (
            Panel("Links and capacity", "short", "When the lines meet, nodes refuse agents with 503.", (
                Query(f"sum(fairlead_links{{{FLEET}}})", "links"),
                Query(f"sum(fairlead_link_capacity{{{FLEET}}})", "capacity"),
            )),
            Panel("Links opened", "ops",
                  "Links welcomed per second: of agents that started (new) or came back (resumed).",
                  (rate("fairlead_links_opened_total", FLEET, "result"),)),
            Panel("Links closed", "ops", "Links closed per second, by close code; docs/protocol.md explains the codes.",
                  (rate("fairlead_links_closed_total", FLEET, "code"),)),
            Panel("Lost links", "short",
                  "Links cut, silent or not reading, per link and hour. The objective is 0.01.", (
                Query(f"3600 * sum(rate(fairlead_links_closed_total{{{FLEET},{LOST_CODES}}}{RATE}))"
                      f" / clamp_min(sum(fairlead_links{{{FLEET}}}), 1)", "lost per link and hour"),
            )),
            Panel("Upgrades refused", "ops",
                  "Upgrades refused per second, by reason: token, subprotocol, full, busy, rate, draining.",
                  (rate("fairlead_handshakes_rejected_total", FLEET, "reason"),)),
            Panel("Cloned agents", "short", "Agents whose key was found to be used by two copies, in the last hour.", (
                Query(f"sum(increase(fairlead_cloned_agents_total{{{FLEET}}}[1h]))", "cloned"),)),
            Panel("Links that wait for welcome", "short",
                  "Links accepted and not welcomed yet, and how many there may be, in the whole fleet. When the lines "
                  "meet, nodes refuse agents as busy.", (
                Query(f"sum(fairlead_links_opening{{{FLEET}}})", "waiting"),
                Query(f"sum(fairlead_links_opening_limit{{{FLEET}}})", "limit"),
            )),
            Panel("Heartbeat round trip", "s", "Round trips that agents measure with each heartbeat.",
                  quantiles("fairlead_heartbeat_rtt_seconds", FLEET)),
        )),
        Row("Commands", (
            Panel("Commands", "ops", "Commands accepted from callers, and commands written to links.", (
                Query(f"sum(rate(fairlead_commands_accepted_total{{{FLEET}}}{RATE}))", "accepted"),
                Query(f"sum(rate(fairlead_commands_delivered_total{{{FLEET}}}{RATE}))", "delivered"),
            )),
            Panel("Ends", "ops", "Commands that ended per second, by state.",
                  (rate("fairlead_commands_total", FLEET, "state"),)),
            Panel("Late deliveries", "percentunit",
                  "Share of commands written to the link more than 0.25 s after the node learnt of them.", (
                Query("1 - sum(rate(fairlead_command_stage_duration_seconds_bucket"
                      f'{{{FLEET},stage="deliver",le="0.25"}}{RATE})) / sum(rate('
                      f'fairlead_command_stage_duration_seconds_count{{{FLEET},stage="deliver"}}{RATE}))', "late"),
            )),
            Panel("Command duration", "s",
                  "From the post to the end, including the agent's own work. Dots link to traces.",
                  quantiles("fairlead_command_duration_seconds", FLEET, exemplars=True), width=12),
            Panel("Command durations", "s", "Number of commands by duration. Dots link to traces.", (
                Query(f"sum by (le) (increase(fairlead_command_duration_seconds_bucket{{{FLEET}}}{RATE}))",
                      "{{le}}", True),
            ), "heatmap", 12),
            Panel("Slowest methods", "s", "p99 by method. The first twenty methods of a node have a line each.",
                  quantiles("fairlead_command_duration_seconds", FLEET, "method", shares=(0.99,)), width=12),
            Panel("Stages", "s", "p99 of each stage of a command; docs/telemetry.md defines the stages.",
                  quantiles("fairlead_command_stage_duration_seconds", FLEET, "stage", shares=(0.99,)), width=12),
        )),
        Row("Traffic", (
            Panel("Messages", "ops", "Messages on links, from agents (in) and to agents (out).",
                  (rate("fairlead_messages_total", FLEET, "direction"),)),
            Panel("Bytes", "Bps", "Encoded bytes of messages.",
                  (rate("fairlead_message_bytes_total", FLEET, "direction"),)),
            Panel("Results stored", "Bps", "Payload bytes of results that were stored in Redis.", (
                Query(f"sum(rate(fairlead_results_stored_bytes_total{{{FLEET}}}{RATE}))", "stored"),
            )),
        )),
    ),
    (NAMESPACE, GATEWAY),
    (Query(f"sum(fairlead_draining{{{FLEET}}}) > 0", "a node drains"),),
)  # fmt: skip

NODES = Dashboard(
    "nodes",
    "Fairlead / Nodes",
    "The state of each node: its load, event loop, links, commands and membership.",
    (
        Row("Load", (
            Panel("Links", "short", "Open links of each node.", (Query(f"fairlead_links{{{NODE}}}", "{{pod}}"),)),
            Panel("Capacity in use", "percentunit", "Share of the node's link capacity that is in use.", (
                Query(f"fairlead_links{{{NODE}}} / fairlead_link_capacity{{{NODE}}}", "{{pod}}"),
            )),
            Panel("Imbalance", "short", "Links of the fullest node divided by the average; 1 means even.", (
                Query(f"max by (namespace, gateway) (fairlead_links{{{NODE}}})"
                      f" / clamp_min(avg by (namespace, gateway) (fairlead_links{{{NODE}}}), 1)",
                      "{{gateway}}"),
            )),
            Panel("Agents", "short", "Agents that each node holds.", (Query(f"fairlead_agents{{{NODE}}}", "{{pod}}"),)),
            Panel("Draining", "short", "Agents that have yet to leave a node that drains.",
                  (Query(f"fairlead_drain_remaining{{{NODE}}}", "{{pod}}"),)),
            Panel("Versions", "short", "Number of nodes of each version.",
                  (Query(f"count by (version) (fairlead_build_info{{{NODE}}})", "{{version}}"),)),
        )),
        Row("Event loop", (
            Panel("Event loop lag", "s",
                  "p99 of how late a timer runs; everything else on the event loop waits as long.",
                  quantiles("fairlead_event_loop_lag_seconds", NODE, "pod", shares=(0.99,))),
            Panel("Garbage collection", "percentunit", "Share of time spent in garbage collection, by node.", (
                Query(f"sum by (pod) (rate(fairlead_gc_pause_seconds_sum{{{NODE}}}{RATE}))", "{{pod}}"),
            )),
            Panel("Tasks", "short", "Short-lived tasks of routing that are running.",
                  (Query(f"fairlead_tasks{{{NODE}}}", "{{pod}}"),)),
        )),
        Row("Links", (
            Panel("Phases of opening a link", "s", "p99 of each phase.",
                  quantiles("fairlead_handshake_duration_seconds", NODE, "phase", shares=(0.99,))),
            Panel("Claims", "s", "Time from hello to welcome, including repeated attempts.",
                  quantiles("fairlead_claim_duration_seconds", NODE)),
            Panel("Lifetime of links", "s", "Time from welcome to close, of links that were closed.",
                  quantiles("fairlead_link_duration_seconds", NODE, shares=(0.5, 0.99))),
            Panel("Slow readers", "short", "Agents that read more slowly than the node sends.",
                  (Query(f"fairlead_slow_readers{{{NODE}}}", "{{pod}}"),)),
            Panel("Send queues", "bytes", "Bytes that wait to be sent to slow readers.",
                  (Query(f"fairlead_send_queue_bytes{{{NODE}}}", "{{pod}}"),)),
            Panel("Messages", "ops", "Messages on links, by type.", (rate("fairlead_messages_total", NODE, "type"),)),
        )),
        Row("Commands", (
            Panel("Delivered", "ops", "Commands written to links, by node.",
                  (rate("fairlead_commands_delivered_total", NODE, "pod"),)),
            Panel("Duration", "s", "p99 from the post to the end of commands, by the node that holds the agent.",
                  quantiles("fairlead_command_duration_seconds", NODE, "pod", shares=(0.99,), exemplars=True)),
            Panel("Followers", "short", "Callers that wait for results on the node.",
                  (Query(f"fairlead_followers{{{NODE}}}", "{{pod}}"),)),
        )),
        Row("Membership", (
            Panel("Age of the last heartbeat", "s", "Above 15 s the other nodes consider the node dead.",
                  (Query(f"fairlead_heartbeat_age_seconds{{{NODE}}}", "{{pod}}"),)),
            Panel("Membership lost", "short", "How often a node lost its row, or found Redis without its data.", (
                Query(f"sum by (pod) (increase(fairlead_node_fenced_total{{{NODE}}}{RATE}))", "{{pod}} fenced"),
                Query(f"sum by (pod) (increase(fairlead_data_lost_total{{{NODE}}}{RATE}))", "{{pod}} data lost"),
            )),
            Panel("Agents claimed again", "ops",
                  "Agents that the node claimed again because their rows in Redis were in doubt.",
                  (rate("fairlead_agents_reclaimed_total", NODE, "pod"),)),
        )),
    ),
    (NAMESPACE, GATEWAY, POD),
    (Query(f"fairlead_draining{{{NODE}}} == 1", "drain"),),
)  # fmt: skip

AUTOSCALING = Dashboard(
    "autoscaling",
    "Fairlead / Autoscaling",
    "What the operator observes, decides and does, and what prevents it.",
    (
        Row("Pods", (
            Panel("Replicas", "short",
                  "Pods that the operator wants, that the Deployment requests, and that accept links.", (
                Query(of_leader("desired_replicas"), "{{gateway}} desired"),
                Query(of_leader("current_replicas"), "{{gateway}} current"),
                Query(of_leader("ready_replicas"), "{{gateway}} ready"),
            ), width=12),
            Panel("Rules", "short", "Pods that each scaling rule requires; the greatest number wins.", (
                Query(of_leader("rule_replicas", "namespace, gateway, rule"), "{{gateway}} {{rule}}"),
            ), width=12),
        )),
        Row("Signal", (
            Panel("Links", "short", "Links that the nodes report.",
                  (Query(of_leader("reported_links"), "{{gateway}}"),)),
            Panel("Headroom", "percentunit", "Share of the ready pods' capacity that is free.",
                  (Query(of_leader("headroom_ratio"), "{{gateway}}"),)),
            Panel("Silent pods", "short", "Ready pods that have not reported for 15 s; no pod is removed then.",
                  (Query(of_leader("stale_reports"), "{{gateway}}"),)),
        )),
        Row("Decisions", (
            Panel("Decisions", "ops", "One decision in each reconciliation, by action and by the rule that won.", (
                Query("sum by (action, winner) (rate(fairlead_operator_scale_decisions_total"
                      f"{{{FLEET}}}{RATE}))", "{{action}} {{winner}}"),
            )),
            Panel("Scalings", "short", "Changes of the replica count that the operator wrote.", (
                Query(f"sum by (gateway, action) (increase(fairlead_operator_scalings_total{{{FLEET}}}{RATE}))",
                      "{{gateway}} {{action}}"),
            )),
            Panel("Conditions", "short", "1 while the condition is True; kubectl describe shows the reason.",
                  (Query(of_leader("condition", "namespace, gateway, condition"), "{{gateway}} {{condition}}"),)),
            Panel("Removal held", "short",
                  "1 while this keeps a pod that is not needed from being removed; kubectl describe says why.",
                  (Query(of_leader("removal_held", "namespace, gateway, by"), "{{gateway}} {{by}}"),)),
            Panel("New links directed", "short", "1 while a rollout directs all new links to the new pods.",
                  (Query(of_leader("new_links_directed"), "{{gateway}}"),)),
            Panel("Wrong removals", "short", "Scale-downs that removed another pod than the operator had chosen.", (
                Query(f"sum by (gateway) (increase(fairlead_operator_wrong_removals_total{{{FLEET}}}{RATE}))",
                      "{{gateway}}"),
            )),
        )),
        Row("Mode DryRun", (
            Panel("Other autoscalers", "short",
                  "Mode DryRun: pods that an HPA and KEDA would set on the same reports.", (
                Query(of_leader("rule_replicas"), "{{gateway}} fairlead"),
                Query(of_leader("compared_replicas", "namespace, gateway, autoscaler"), "{{gateway}} {{autoscaler}}"),
            ), width=24),
        )),
        Row("Canary", (
            Panel("Canary", "short", "1 while a new pod template is compared with the accepted one.",
                  (Query(of_leader("canary"), "{{gateway}}"),), width=12),
            Panel("Canaries", "short", "Canaries that have ended, by outcome.", (
                Query(f"sum by (gateway, outcome) (increase(fairlead_operator_canaries_total{{{FLEET}}}{RATE}))",
                      "{{gateway}} {{outcome}}"),
            ), width=12),
        )),
        Row("Moves", (
            Panel("Move rate", "ops", "Agents that may move per second: half of what the receiving pods accept.",
                  (Query(of_leader("move_rate"), "{{gateway}}"),)),
            Panel("Moves", "ops",
                  "Agents that were told to move per second, granted by the budget or overdrawn for lack of time.",
                  (rate("fairlead_moves_total", FLEET, "budget"),)),
            Panel("Waiting moves", "short", "Agents that wait until the budget grants their move.",
                  (Query(f"sum by (pod) (fairlead_moves_waiting{{{FLEET}}})", "{{pod}}"),)),
        )),
        Row("Rebalance", (
            Panel("Links to move", "short", "Links that the running rebalance has still to move to pods with fewer.",
                  (Query(of_leader("rebalance_links"), "{{gateway}}"),), width=12),
            Panel("Rebalances", "short", "Rebalances that have ended, by outcome. LoadBalancerPins: links came back.", (
                Query(f"sum by (gateway, outcome) (increase(fairlead_operator_rebalances_total{{{FLEET}}}{RATE}))",
                      "{{gateway}} {{outcome}}"),
            ), width=12),
        )),
        Row("Operator", (
            Panel("Leaders", "short", "Replicas of the operator that are the leader; must be 1.",
                  (Query("sum(fairlead_operator_leader)", "leaders"),), width=6),
            Panel("LinkGateways", "short", "LinkGateways that the operator reconciles.",
                  (Query("max(fairlead_operator_gateways)", "LinkGateways"),), width=6),
            Panel("Reconciliation", "s", "Duration of one reconciliation of one LinkGateway.",
                  quantiles("fairlead_operator_reconcile_duration_seconds", "", shares=(0.5, 0.99)), width=6),
            Panel("Failed reconciliations", "ops", "Reconciliations that ended with an error, by reason.",
                  (rate("fairlead_operator_reconcile_failures_total", "", "reason"),), width=6),
        )),
    ),
    SCALED,
    (Query(f"increase(fairlead_operator_scalings_total{{{FLEET}}}[1m]) > 0", "{{gateway}}: {{action}}"),),
)  # fmt: skip

REDIS = Dashboard(
    "redis-tracing",
    "Fairlead / Redis and tracing",
    "The state that nodes share in Redis, and what leaves them: audit log, events, traces.",
    (
        Row("Redis", (
            Panel("Redis", "short", "1 while Redis answers the node. Its disk: 1 while it cannot write there.", (
                Query(f"fairlead_redis_up{{{NODE}}}", "{{pod}}"),
                Query(f"max(fairlead_redis_disk_failing{{{NODE}}})", "disk fails"),
            )),
            Panel("Batches", "s", "Round trip of one pipelined batch.",
                  quantiles("fairlead_redis_batch_duration_seconds", NODE)),
            Panel("Redis commands", "ops", "Commands that Redis answered, by node.",
                  (rate("fairlead_redis_commands_total", NODE, "pod"),)),
            Panel("Backlog", "short", "Calls that wait to be sent to Redis, by priority.",
                  (Query(f"sum by (pod, priority) (fairlead_redis_backlog{{{NODE}}})", "{{pod}} {{priority}}"),)),
            Panel("Errors", "short", "How often the connection was lost, or Redis did not answer for a second.", (
                Query(f"sum by (pod) (increase(fairlead_redis_errors_total{{{NODE}}}{RATE}))", "{{pod}}"),
            )),
            Panel("Appends fenced", "ops", "Results refused because another node owns the agent.",
                  (rate("fairlead_appends_fenced_total", NODE, "pod"),)),
        )),
        Row("Doorbells", (
            Panel("Doorbells", "ops", "Notifications from node to node that commands are waiting.", (
                Query(f"sum(rate(fairlead_doorbells_sent_total{{{NODE}}}{RATE}))", "sent"),
                Query(f"sum(rate(fairlead_doorbells_received_total{{{NODE}}}{RATE}))", "received"),
            ), width=12),
            Panel("Doorbells lost", "ops",
                  "Doorbells that reached no node. The commands that they announced are still found, but later.",
                  (rate("fairlead_doorbells_lost_total", NODE, "pod"),), width=12),
        )),
        Row("Audit log", (
            Panel("Audit lines", "ops", "Lines written to the audit log, and lines that the collector accepted.", (
                Query(f"sum(rate(fairlead_audit_lines_total{{{NODE}}}{RATE}))", "written"),
                Query(f"sum(rate(fairlead_audit_exported_lines_total{{{NODE}}}{RATE}))", "exported"),
            )),
            Panel("Audit lines not exported yet", "short",
                  "Lines that the collector has not accepted yet, and lines that were removed before that.", (
                      Query(f"fairlead_audit_export_waiting_lines{{{NODE}}}", "{{pod}} waiting"),
                      Query(f"fairlead_audit_export_missing_lines_total{{{NODE}}}", "{{pod}} removed"),
                  )),
            Panel("Audit failures", "ops",
                  "Requests that were refused because the log could not be written, and batches that the collector did"
                  " not accept.", (
                      Query(f"sum(rate(fairlead_audit_failures_total{{{NODE}}}{RATE}))", "refused requests"),
                      Query(f"sum(rate(fairlead_audit_export_failures_total{{{NODE}}}{RATE}))", "batches sent again"),
                  )),
        )),
        Row("Events", (
            Panel("Lag of groups of readers", "short",
                  "Events that each group has not read yet, at most; the groups of sinks begin with ~.", (
                      Query(f"max by (group) (fairlead_event_group_lag{{{FLEET}}})", "{{group}}"),
                  )),
            Panel("Events not acknowledged", "short",
                  "Events that readers of each group have taken and not acknowledged. At 1,000 it takes nothing new.", (
                      Query(f"max by (group) (fairlead_event_group_pending{{{FLEET}}})", "{{group}}"),
                  )),
            Panel("Redeliveries", "ops",
                  "Events that groups of readers got again, and those removed because an agent had too many.", (
                      Query(f"sum(rate(fairlead_event_redeliveries_total{{{FLEET}}}{RATE}))", "got again"),
                      Query(f"sum(rate(fairlead_events_dropped_total{{{FLEET}}}{RATE}))", "removed"),
                  )),
            Panel("Attempts of sinks", "ops", "Attempts to deliver events to each sink, by outcome.", (
                Query(f"sum by (sink, outcome) (rate(fairlead_event_sink_attempts_total{{{FLEET}}}{RATE}))",
                      "{{sink}} {{outcome}}"),
            ), width=12),
            Panel("Events that sinks did not get", "short",
                  "Dead letters of each sink, and times that events were removed before it had them.", (
                      Query(f"sum by (sink) (increase(fairlead_event_sink_dead_letters_total{{{FLEET}}}{RATE}))",
                            "{{sink}} dead letters"),
                      Query(f"sum by (sink) (increase(fairlead_event_sink_gaps_total{{{FLEET}}}{RATE}))",
                            "{{sink}} gaps"),
                  ), width=12),
        )),
        Row("Traces", (
            Panel("Spans", "ops", "Spans that the collector accepted.",
                  (rate("fairlead_spans_exported_total", NODE, "pod"),)),
            Panel("Waiting spans", "short",
                  "Spans that wait to be exported, at most 8,192. Only with a trace endpoint.",
                  (Query(f"fairlead_spans_waiting{{{NODE}}}", "{{pod}}"),)),
            Panel("Spans lost", "ops", "Spans lost because the queue was full or the collector did not accept them.",
                  (rate("fairlead_spans_dropped_total", NODE, "pod"),)),
        )),
    ),
    (NAMESPACE, GATEWAY, POD),
)  # fmt: skip

DASHBOARDS = (OVERVIEW, NODES, AUTOSCALING, REDIS)
