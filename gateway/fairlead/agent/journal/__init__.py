"""The agent's durable memory: `journal` records commands, output and events, and restores them in a new process.

`writer` appends the records, syncs them in groups and rewrites the file; `journal_file` is the locked folder and the
file on disk. `records` defines the records and their encoding, `state` is the result of applying them, and `replay`
reads it back.
"""
