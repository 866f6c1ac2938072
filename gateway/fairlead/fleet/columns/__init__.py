"""Columns: the facts and labels of all agents of a shard, key by key, so that a selector reads no rows to rule out."""
