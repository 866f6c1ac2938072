"""`fairlead approvals`: what waits for the approval of a second person, and the decision about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group
from fairlead.cli.output.formats import View, output_option, render
from fairlead.cli.output.table import UNLIMITED, format_table
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.client import ApprovalInfo


@click.group(cls=Group)
def approvals() -> None:
    """Look at requests for an approval, and approve or deny those of others."""


@approvals.command("ls", short_help="List requests for an approval.")
@api_options
@output_option
def ls(api: str, token: str | None, output: str) -> None:
    """List the requests that you have made or may decide, the oldest first."""
    found = call_api(api, token, lambda client: client.approvals.list())
    click.echo(render(_view(found), output), nl=False)
    if not found:
        click.echo("no request waits for an approval of yours, and none is yours", err=True)


@approvals.command("show", short_help="Show what is asked for.")
@api_options
@output_option
@click.argument("approval")
def show(api: str, token: str | None, output: str, approval: str) -> None:
    """Show everything that a request would start: look at it before you approve it."""
    import msgspec

    one = call_api(api, token, lambda client: client.approvals.get(approval))
    payload = "(too large to be shown)" if one.payload is None else plain(one.payload)
    roles = " and ".join(" or ".join(wanted) for wanted in one.approvers)
    rows = [
        ("id", one.id), ("state", one.state), ("asked by", one.subject), ("kind", one.kind), ("method", one.method),
        ("target", one.target), ("targets", str(one.targets)), ("payload", payload), ("SHA-256", one.digest),
        *([("content", one.content)] if one.content else []),
        ("roles", roles), ("created", one.created), ("expires", one.expires), ("decided by", one.decided_by or "-"),
        ("used by", one.command or "-"),
    ]  # fmt: skip
    lines = format_table(("MEMBER", "VALUE"), rows, width=UNLIMITED) + _content_lines(one)  # nothing is left out
    click.echo(render(View([one.id], msgspec.to_builtins(one), lines, lines), output), nl=False)


def _content_lines(one: ApprovalInfo) -> list[str]:
    """The script or file that would be sent, line by line."""
    if not one.content:
        return []
    if one.content_text is None:
        return ["", "content: not shown, because it is no text, too large or gone, or you may not decide"]
    return [
        "",
        "content:",
        *(f"  {plain(line.expandtabs())}" for line in one.content_text.removesuffix("\n").split("\n")),
    ]


@approvals.command("approve", short_help="Approve a request of another person.")
@api_options
@click.argument("approval")
def approve(api: str, token: str | None, approval: str) -> None:
    """Approve a request of another person: they may start exactly that, once, before it expires."""
    call_api(api, token, lambda client: client.approvals.approve(approval))
    click.echo(f"approved {approval}", err=True)


@approvals.command("deny", short_help="Deny a request of another person.")
@api_options
@click.argument("approval")
def deny(api: str, token: str | None, approval: str) -> None:
    """Deny a request of another person."""
    call_api(api, token, lambda client: client.approvals.deny(approval))
    click.echo(f"denied {approval}", err=True)


def _view(found: list[ApprovalInfo]) -> View:
    import msgspec

    head = ("ID", "STATE", "ASKED BY", "METHOD", "TARGET", "EXPIRES")
    rows = [(one.id, one.state, one.subject, one.method, one.target, one.expires) for one in found]
    more = [(str(one.targets), one.decided_by or "-", one.command or "-", one.digest[:12]) for one in found]
    wide = [(*row, *rest) for row, rest in zip(rows, more, strict=True)]
    return View(
        [one.id for one in found],
        {"approvals": msgspec.to_builtins(found)},
        format_table(head, rows),
        format_table((*head, "TARGETS", "DECIDED BY", "USED BY", "DIGEST"), wide),
    )
