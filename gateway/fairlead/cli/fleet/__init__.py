"""The commands of `fairlead` that show and change what the fleet consists of, one file each: agents, nodes, links.

Like those of `commands`, they import click and nothing heavier until they run. They ask the platform API, and
`store` asks Redis.
"""
