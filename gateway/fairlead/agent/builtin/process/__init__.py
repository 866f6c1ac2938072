"""Programs that the platform starts: `program` starts and ends one, `pipe` reads and writes its pipes or its terminal,
`descendants` finds what it has started itself, and `environment` is what it inherits.
"""
