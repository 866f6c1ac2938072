"""What `main` does with a FairleadError: its exit code, its message on stderr, and the next step for the user.

The message is that of the error. The next step names commands and options, so it is written here and not where the
error is raised.
"""

from __future__ import annotations

import click

from fairlead.cli import exit_codes
from fairlead.errors import (
    AgentOffline,
    AgentOnline,
    AgentUnknown,
    ApprovalRequired,
    BusUnavailable,
    CommandUnknown,
    ConfigError,
    ConnectionRefused,
    FairleadError,
    Forbidden,
    InvalidRequest,
    NodeBusy,
    PermissionDenied,
    QuotaExceeded,
    RecordLost,
    ResultsDropped,
    ResultsTrimmed,
    Unauthorized,
    Unavailable,
)
from fairlead.text import plain

_ADVICE: tuple[tuple[type[FairleadError], str], ...] = (
    (
        Unauthorized,
        "set FAIRLEAD_TOKEN to the gateway's `platform_token` or to a service token, or log in with `fairlead login`",
    ),
    (ApprovalRequired, "when it is approved, repeat the same command with --approval ID"),
    (PermissionDenied, "`fairlead auth whoami` shows your roles"),
    (Forbidden, "use a name that the gateway knows, or add this one to its `allowed_hosts` or `allowed_origins`"),
    (AgentOnline, "stop the agent itself: `fairlead agents disconnect AGENT` closes its link, but it connects again"),
    (AgentUnknown, "`fairlead agents ls` lists all known agents"),
    (CommandUnknown, "results are kept for an hour, unless the gateway's `retention` says otherwise"),
    (
        ResultsTrimmed,
        "a window keeps only what has not been read: start at the offset that the message names, or run it again",
    ),
    (
        ResultsDropped,
        "`fairlead results --from OFFSET`, with the offset that the message names, shows how it ended; the gateway's "
        "`results_limit` and `method_results_limit` say how much is kept",
    ),
    (RecordLost, "Redis has lost its data: check whether the command had its effect before you run it again"),
    (AgentOffline, "`fairlead why AGENT` shows the reason; --queue SECONDS waits for the agent"),
    (BusUnavailable, "the gateway has lost its Redis and reconnects by itself: try again in a few seconds"),
    (QuotaExceeded, "`fairlead tenants ls` shows the quotas to an administrator of the gateway"),
    (NodeBusy, "try again in a few seconds"),
    (
        ConnectionRefused,
        "is the gateway running? `fairlead demo` starts one on this machine (`make run` in the sources); --api or "
        "FAIRLEAD_API names another one; `fairlead doctor` finds out more",
    ),
    (Unavailable, "try again in a few seconds; `fairlead doctor` finds out more"),
)
"""The next step for each error; subclasses stand before their bases."""

_FIELD_ADVICE = {
    "selector": "for example: --selector 'env in (prod,dev),os.version<12,!retired'; `fairlead agents ls -l SELECTOR` "
    "shows who matches",
    "from": "`fairlead results ID` shows all stored results",
    "id": "`fairlead commands ls` lists the commands that have not ended",
    "run": "`fairlead runs ls` lists runs",
    "api": "use --api http://HOST:8081 or FAIRLEAD_API",
}
"""The next step for an invalid field, where the message alone is not enough."""


def exit_code(error: FairleadError) -> int:
    if isinstance(error, RecordLost | AgentOnline):
        return exit_codes.FAILED
    if isinstance(error, InvalidRequest | ConfigError):
        return exit_codes.USAGE
    return exit_codes.UNAVAILABLE if isinstance(error, Unavailable | ConnectionRefused) else exit_codes.FAILED


def report_error(error: FairleadError) -> None:
    # Only a ConfigError has several lines on purpose. The text of other errors may come from elsewhere, so it is
    # printed as one line.
    lines = error.message.split("\n") if isinstance(error, ConfigError) else [error.message]
    message = "\n".join(map(plain, lines))
    click.echo(f"fairlead: {message}", err=True)
    if advice := _advice(error):
        click.echo(f"  → {advice}", err=True)


def _advice(error: FairleadError) -> str:
    if error.code == "cluster_unavailable":
        return "`kubectl cluster-info` shows whether the cluster answers"
    if error.code == "redis_unavailable":
        return "name it with --redis or FAIRLEAD_REDIS, or with --data the folder of a demo or of a node"
    if error.details.get("state") == "denied":
        return "`fairlead approvals show ID` says who has denied it"
    if isinstance(error, ConnectionRefused) and "WRONG_VERSION_NUMBER" in error.message:
        return "what answers there speaks no TLS: is it http:// and not https://?"
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return advice
    field = str(error.details.get("field", "")).partition("[")[0]
    if field in _FIELD_ADVICE:
        return _FIELD_ADVICE[field]
    if error.details.get("status") and not error.details.get("code"):
        return "is this the URL of Fairlead's API? `fairlead doctor` finds out more"
    return "see the gateway's log" if error.details.get("code") == "internal" else ""
