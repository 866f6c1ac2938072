"""Handlers that run in processes: `process_runner` runs a command in one, which the agent's `fork_server` forks.

`fork_server_process` is the other end of the fork server, a process that has imported the agent's modules and nothing
else; `child_process` is what runs in each process that it forks.
"""
