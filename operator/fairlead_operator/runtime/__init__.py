"""The operator at work.

`leader_election` decides which replica acts, `informer` keeps the resources that exist, and `controller` reconciles
each of them by a `reconciler`. That one uses `child_applier`, `scale_executor` and the `reports`. `health`
serves probes and metrics.
"""
