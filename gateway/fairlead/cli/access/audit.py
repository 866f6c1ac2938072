"""`fairlead audit`: shows and verifies the audit log of a node, on the machine that has its files.

No gateway is asked: whoever looks into what a gateway did should not have to believe that gateway.
"""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli import exit_codes
from fairlead.cli.click_extensions import Group, IntegerRange
from fairlead.cli.output.formats import View, output_option, render
from fairlead.cli.output.table import format_table
from fairlead.text import plain

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(cls=Group)
def audit() -> None:
    """Show and verify the audit log of a node."""


@audit.command("ls", short_help="List what an audit log has recorded.")
@output_option
@click.option("--subject", metavar="SUBJECT", help="Only of this caller, such as token:ci.")
@click.option("--action", metavar="OPERATION", help="Only of this operation, such as postCommand.")
@click.option("--agent", metavar="AGENT", help="Only what concerns this agent.")
@click.option("--outcome", type=click.Choice(["allowed", "denied"]), help="Only with this outcome.")
@click.option("--since", default="", metavar="TIME", help="Only from this time on: 2026-11-23 or 2026-11-23T10:00:00Z.")
@click.option("--limit", type=IntegerRange(1), default=1000, show_default=True, help="The newest of these.")
@click.argument("folder", type=FOLDER)
def ls(folder: Path, output: str, since: str, limit: int, **wanted: str | None) -> None:
    """List what the audit log in FOLDER has recorded, the oldest first. It does not check it: `verify` does."""
    from collections import deque

    import msgspec

    from fairlead.audit.verification import read_lines

    found = deque(
        (
            line
            for line in read_lines(folder)
            if line.time >= since and all(value in (None, getattr(line, name)) for name, value in wanted.items())
        ),
        maxlen=limit,
    )
    shown = sorted(found, key=lambda line: (line.time, line.node, line.seq))
    head = ("TIME", "SUBJECT", "ACTION", "WHAT", "WHOM", "OUTCOME")
    rows = []
    for line in shown:
        whom = line.agent or line.command or line.selector or ("-" if line.count is None else f"{line.count} shown")
        rows.append((line.time, line.subject, line.action, line.method or line.detail or "-", whom, line.outcome))
    more = [
        (line.node, str(line.seq), line.digest[:12] or "-", line.trace or "-", line.reason or "-") for line in shown
    ]
    wide = [(*row, *rest) for row, rest in zip(rows, more, strict=True)]
    view = View(
        [f"{line.node}:{line.seq}" for line in shown],
        {"lines": msgspec.to_builtins(shown)},
        format_table(head, rows),
        format_table((*head, "NODE", "LINE", "DIGEST", "TRACE", "REASON"), wide),
    )
    click.echo(render(view, output), nl=False)


@audit.command("verify", short_help="Check that an audit log is whole.")
@click.option("--head", "known", metavar="LINE:HASH", help="A head that was noted earlier and must be in the log.")
@click.argument("folder", type=FOLDER)
@click.pass_context
def verify(ctx: click.Context, folder: Path, known: str | None) -> None:
    """Check that no line of the audit log in FOLDER was removed, changed or moved.

    Prints the head of each node's log. Note it where the gateway cannot write: only a head that was noted elsewhere
    shows that a whole log was written anew. Exits with 1 if something is wrong.
    """
    from fairlead.audit.records import Head
    from fairlead.audit.verification import verify_folder

    head = None if known is None else Head.parse(known)
    if known is not None and head is None:
        raise click.BadParameter(f"{known!r}: expected LINE:HASH, as an earlier check printed it", param_hint="--head")
    reports = verify_folder(folder, head)
    if not reports:
        raise click.UsageError(f"{folder} has no audit log: expected files such as node-1.000000000001.jsonl")
    for report in reports:
        for fault in report.faults:
            click.echo(plain(fault), err=True)
        if not report.faults:
            click.echo(f"{report.node}: lines {report.first} to {report.head.seq} are whole; head {report.head}")
    ctx.exit(exit_codes.FAILED if any(report.faults for report in reports) else exit_codes.OK)
