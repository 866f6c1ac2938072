"""`fairlead serve`: one gateway node in this process.

`node_server` runs the node and its three servers until a signal ends it; `sockets` binds their ports. Several nodes on
one machine are the matter of `workers`.
"""
