"""Asks Redis what the user of a connection may not do, without doing anything.

`fairlead redis check` calls it. Redis checks the rights to a command when it queues it in a transaction, and the
transaction is discarded. So nothing is read or written, and no right to administer is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.fleet.acl.users import KEY, RedisUser
from fairlead.fleet.schema import NODES
from fairlead.store.endpoint import RedisConnection

BRACKET = ("multi", "discard")


async def missing_rules(connection: RedisConnection, user: RedisUser) -> list[str]:
    """The rules that the user of `connection` lacks for what `user` does. Raises BusUnavailable if the server
    refuses to queue anything for another reason."""
    if await connection.lacking_rule("MULTI"):
        return ["+multi"]  # without it, what follows would be run
    missing = []
    for command, example in user.commands.items():
        if command in BRACKET:
            continue
        if await connection.lacking_rule(*example.replace(KEY, NODES).split()) not in ("", "~"):
            missing.append(f"+{command}")
    for rule, command in _keys(user):
        if await connection.lacking_rule(*command.split()) == "~":
            missing.append(rule)
    return missing + ["+discard"] * bool(await connection.lacking_rule("DISCARD"))


def _keys(user: RedisUser) -> Iterator[tuple[str, str]]:
    """The rule of each pattern, and a command that needs it."""
    reading = "hgetall {}" if "hgetall" in user.commands else "memory usage {}"
    for sign, patterns, command in (("~", user.keys, "pexpire {} 1"), ("%R~", user.read_keys, reading)):
        for pattern in patterns:
            yield f"{sign}{pattern}", command.format(pattern.replace("*", "fairlead-doctor}"))
