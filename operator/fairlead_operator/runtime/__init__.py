"""The operator at work.

`leader_election` decides which replica acts, `informer` knows the existing resources, and `controller` has each
LinkGateway reconciled by a `reconciler`. In each pass a reconciler uses `acceptance`, `child_applier`, the `…_executor`
modules, `link_director`, the package `canary` and the `reports`. `health` serves probes and metrics.
"""
