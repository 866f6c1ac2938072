"""The Kubernetes operator: deploys gateway pods and scales them on the connections that each reports.

It reads `fairlead.fleet` (the rows that nodes beat into Redis) and writes a Deployment's scale; it never opens a
link and never serves HTTP to agents or platforms. Its rooms are built with the cluster that proves them.
"""
