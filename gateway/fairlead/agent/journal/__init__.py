"""The agent's durable memory: `journal` decides what is written and when it is synced, `records` defines the records
and reads them back, and `journal_file` is the locked folder and the append-only file on disk.
"""
