"""What a reconciliation reads besides the workload: `secrets`, the `ingress_class`, the `machines` of the pods, and the
`node_metrics` and the history (`history_store`) in the `fleet_redis`."""
