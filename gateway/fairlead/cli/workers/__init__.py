"""`fairlead serve --workers N`: several nodes on one machine, which share their ports.

`supervisor` forks and restarts the processes, `forked_process` is one of them, and `worker_process` is what runs in
them: a node each, and in one more the server of the admin port that all workers share. `admin_app` answers on that port
with what the workers answer, and `metrics_merge` merges their metrics. `shared_status` is the memory through which the
supervisor passes its own knowledge to that process.
"""
