"""What a reconciliation reads besides the workload: `secrets`, the `ingress_class`, the `machines` of the pods, a
`prometheus_query`, and the `node_metrics` and the history (`history_store`) in the `fleet_redis`."""
