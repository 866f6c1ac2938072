"""The audit log of a node: who was allowed or denied what, in files whose lines are chained by their hashes.

`records` are the lines and their chain, `segments` are the files, `log_writer` writes them and signs the heads that
`signed_head` describes, `log_exporter` sends them to a collector, and `verification` finds out whether a line was
removed, changed or moved. The API writes, and the command line reads and verifies.
"""
