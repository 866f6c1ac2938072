"""What `main` does with an error of the house: its exit code, its message on stderr, and what to do next.

The advice is for people at a terminal, so it names commands and options; the message is that of the error.
"""

from __future__ import annotations

import click

from fairlead.cli import exit_codes
from fairlead.errors import (
    AgentOffline,
    AgentOnline,
    AgentUnknown,
    BusUnavailable,
    CommandUnknown,
    ConfigError,
    ConnectionRefused,
    FairleadError,
    Forbidden,
    InvalidRequest,
    NodeBusy,
    RecordLost,
    ResultsTrimmed,
    Unauthorized,
    Unavailable,
)
from fairlead.text import plain

_ADVICE: tuple[tuple[type[FairleadError], str], ...] = (
    (Unauthorized, "give the token in FAIRLEAD_TOKEN, the one the gateway has as platform_token"),
    (Forbidden, "name the gateway as it is known, or add the name to its `allowed_hosts` or `allowed_origins`"),
    (AgentOnline, "stop the agent itself; `fairlead agents disconnect AGENT` closes a link, but the agent comes back"),
    (AgentUnknown, "`fairlead agents ls` lists those that were ever seen"),
    (CommandUnknown, "results are kept for an hour unless the gateway's `retention` says otherwise"),
    (
        ResultsTrimmed,
        "a window keeps what was not read yet: begin at the offset that is named, or run it again",
    ),
    (RecordLost, "Redis has lost its data; look whether the command had its effect before you run it again"),
    (AgentOffline, "`fairlead why AGENT` says why; --queue SECONDS waits for it"),
    (BusUnavailable, "the gateway has lost its Redis; it repairs itself, try again in some seconds"),
    (NodeBusy, "try again in some seconds"),
    (
        ConnectionRefused,
        "is it running? `fairlead demo` starts one here (as does `make run` in the sources); --api or FAIRLEAD_API "
        "names another; `fairlead doctor` tells more",
    ),
    (Unavailable, "try again in some seconds; `fairlead doctor` tells more"),
)
"""The next step for each error, the special ones before their bases."""

_FIELDS = {
    "selector": "an example: --selector 'env in (prod,dev),os=linux,!retired'",
    "from": "`fairlead results ID` shows all that there is",
    "id": "`fairlead why AGENT` lists the ids of what is open for it",
    "api": "--api http://HOST:8081, or FAIRLEAD_API",
}
"""The next step for a fault in one field, where the message alone does not tell it."""


def exit_code(error: FairleadError) -> int:
    if isinstance(error, RecordLost | AgentOnline):
        return exit_codes.FAILED
    if isinstance(error, InvalidRequest | ConfigError):
        return exit_codes.USAGE
    return exit_codes.UNAVAILABLE if isinstance(error, Unavailable | ConnectionRefused) else exit_codes.FAILED


def report_error(error: FairleadError) -> None:
    # Only the faults of a configuration are lines of our own; in all else others may have had a say.
    lines = error.message.split("\n") if isinstance(error, ConfigError) else [error.message]
    message = "\n".join(map(plain, lines))
    click.echo(f"fairlead: {message}", err=True)
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            click.echo(f"  → {advice}", err=True)
            return
    field = str(error.details.get("field", "")).partition("[")[0]
    if field in _FIELDS:
        click.echo(f"  → {_FIELDS[field]}", err=True)
    elif error.details.get("status") and not error.details.get("code"):
        click.echo("  → is that the address of Fairlead's API? `fairlead doctor` tells more", err=True)
    elif error.details.get("code") == "internal":
        click.echo("  → the gateway's log tells more", err=True)
