"""The errors that the store raises besides `BusUnavailable`, and the translation of redis-py's errors into ours.

Only this package calls the functions; other packages catch the errors. An error reply of the server is of one of two
kinds. Either the server cannot serve at the moment: `BusUnavailable`, which is temporary and whose message names the
cause and the remedy. Or this one command is wrong: `StoreError` or `ScriptError`, which is a bug of ours and never
temporary. The difference matters to callers: they may answer the first kind with "try later", but the second must be
fixed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from redis.exceptions import ResponseError

from fairlead.errors import BusUnavailable, FairleadError, StoreFull, WritesRefused
from fairlead.text import plain


class StoreError(FairleadError):
    """The server refused a command. `reply_code` is the first word of its reply, such as `ERR` or `WRONGTYPE`."""

    code = "store_error"

    def __init__(self, message: str, reply_code: str = "ERR") -> None:
        super().__init__(message, reply_code=reply_code)
        self.reply_code = reply_code


class ScriptError(StoreError):
    """A script failed or returned an error; `script` is its name."""

    code = "script_error"

    def __init__(self, script: str, message: str, reply_code: str = "ERR") -> None:
        super().__init__(f"script {script}: {message}", reply_code)
        self.script = script
        self.details["script"] = script


WRONG_TYPE = "WRONGTYPE"
"""The code for a key whose value is of another type than the command works on."""
OUT_OF_MEMORY = "OOM"
"""The code for a command that needs memory while the server has none left."""
CLUSTER_DOWN = "CLUSTERDOWN"
"""The code for a command that a server of a Cluster refuses because it sees no majority of the primaries."""
UNFIT_SERVER = {
    "LOADING": "it is loading its data; wait",
    "MISCONF": "it cannot write to its disk; free space or repair the disk of the server",
    "READONLY": "it is a replica; point the address at the primary",
    "MASTERDOWN": "it is a replica without its primary; wait for the failover",
    "NOREPLICAS": "too few replicas follow it (min-replicas-to-write)",
    CLUSTER_DOWN: "its cluster is down",
    "MOVED": "it is one server of a Cluster; name the Cluster with redis+cluster://",
    "ASK": "it is one server of a Cluster; name the Cluster with redis+cluster://",
    "TRYAGAIN": "its cluster is moving keys",
    "BUSY": "a script has run too long on it; SCRIPT KILL ends it",
    "NOAUTH": "it requires a password; set one in the address",
    "WRONGPASS": "it refuses the password of the address",
}
"""The codes of error replies whose cause is the state of the server and not the command, with that cause and, where
there is one, the remedy."""


REFUSING_WRITES = frozenset({"MISCONF", "NOREPLICAS"})
"""Those of them with which the server refuses what writes, whoever asks, and serves what reads."""

FULL_RETRY_AFTER = 30
"""Seconds after which a request for which there was too little memory may be repeated. Memory becomes free as results
expire, so a second is too early."""


def store_full(cause: str) -> StoreFull:
    """The error for a request for which the server has too little memory, for a reason such as `Redis is full`."""
    remedy = "it was not accepted; wait until results have expired, or give the server more memory"
    return StoreFull(f"{cause}; {remedy}", retry_after=FULL_RETRY_AFTER)


def reply_code(error: Exception) -> str:
    """The code of an error reply, such as `NOSCRIPT` in `NOSCRIPT No matching script`; `ERR` if it has none."""
    # redis-py removes the codes that it knows from the message and keeps them in `status_code`. Over a Unix socket, it
    # authenticates while it connects and wraps an error from there once more.
    for candidate in (error, error.__cause__):
        known = getattr(candidate, "status_code", None)
        if isinstance(known, str) and known:
            return known
    first = str(error).partition(" ")[0]
    return first if first.isupper() else "ERR"


def lacking_rule(error: Exception) -> str:
    """The rule that the user of a connection lacks, such as `+hset`, or `~` for a key; "" if `error` is another one."""
    message = str(error)
    if reply_code(error) != "NOPERM" and "ACL failure in script" not in message:
        return ""
    command = re.search(r"run the '([^' ]+)' command", message)
    return f"+{command[1]}" if command else "~"


def unfit(error: Exception) -> str:
    """Why the server cannot serve, with the remedy; "" if it is not the server that is wrong."""
    rule = lacking_rule(error)
    if not rule:
        return UNFIT_SERVER.get(reply_code(error), "")
    remedy = "add the pattern of the key to its rules" if rule == "~" else f"add the rule {rule} to it"
    return f"the user of the address lacks a permission; {remedy} (`fairlead redis acl` prints all rules)"


def reply_error(error: ResponseError, address: str, script: str | None, keys: Sequence[bytes] = ()) -> FairleadError:
    """Our error for an error reply. The caller raises it, or sets it on a future, with `error` as its cause. The
    message names the command by its `keys`."""
    code = reply_code(error)
    if code == OUT_OF_MEMORY:
        return store_full(f"Redis at {address} is full: it uses all of its maxmemory")
    if why := unfit(error):
        kind = WritesRefused if code in REFUSING_WRITES else BusUnavailable
        return kind(f"Redis at {address} refuses commands: {why} ({code}: {error})")
    about = f" (keys: {', '.join(plain(key.decode(errors='replace')) for key in keys)})" if keys else ""
    if script is not None:
        return ScriptError(script, f"{error}{about}", code)
    return StoreError(f"Redis at {address}: {error}{about}", code)
