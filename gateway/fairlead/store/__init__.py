"""The one client of Redis: batches of commands with priorities, a blocking reader of streams, scripts, errors, and an
embedded Valkey server for a single node.
"""
