"""What a reconciliation reads besides the workload: `secrets`, the `ingress_class`, and the `node_metrics` in the
`fleet_redis`."""
