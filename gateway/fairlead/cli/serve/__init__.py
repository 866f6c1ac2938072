"""`fairlead serve`: one gateway node in this process.

`node_server` runs the node and its three servers until a signal stops it, `sockets` binds their ports, and
`file_limits` fits the settings to the files that the process may open. Several nodes on one machine are in the package
`workers`.
"""
