"""The commands about access to the platform API: `tokens` creates, lists and revokes service tokens,
`auth` tells who the caller is and what it may do, `audit` shows and verifies the audit log of a node, and `keys` makes
the keys that sign commands.

Like the other commands, they import click and nothing heavier until they run.
"""
