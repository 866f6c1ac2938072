"""The listening sockets of a server, and which of several processes accepts the next connection.

`server_sockets` watches the sockets and pauses; `worker_loads` is the memory in which processes that share a port see
how many connections the others have, and `accept_share` is the rule by which each of them steps aside.
"""
