"""Calls that do the work of many: commands of one shard that are accepted, or whose results are stored, at once."""
