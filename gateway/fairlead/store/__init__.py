"""The Redis client of a node: pipelined batches of commands with priorities, a blocking reader of streams, Lua scripts,
errors, and an embedded Valkey server for a single node.
"""
