"""`fairlead serve --workers N`: several nodes on one machine, which share their ports.

`supervisor` forks and restarts them, `forked_process` is one of its children, and `worker_process` is what runs in a
child: a node, or the server of the admin port that all workers have in common.
"""
