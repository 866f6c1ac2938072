"""`fairlead audit`: shows and verifies the audit log of a node, on the machine that has its files.

No gateway is asked: whoever looks into what a gateway did should not have to believe that gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from fairlead.cli import exit_codes
from fairlead.cli.click_extensions import Group, IntegerRange
from fairlead.cli.output.formats import View, output_option, render
from fairlead.cli.output.table import format_table
from fairlead.fleet.schema import TargetState
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.audit.records import AuditLine
    from fairlead.audit.verification import Evidence, NodeReport

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(cls=Group)
def audit() -> None:
    """Show and verify the audit log of a node."""


@audit.command("ls", short_help="List what an audit log has recorded.")
@output_option
@click.option("--subject", metavar="SUBJECT", help="Only of this caller, such as token:ci.")
@click.option("--action", metavar="OPERATION", help="Only of this operation, such as postCommand.")
@click.option("--method", metavar="METHOD", help="Only of this method of agents, such as exec.")
@click.option("--agent", metavar="AGENT", help="Only what concerns this agent.")
@click.option("--tenant", metavar="TENANT", help="Only of this tenant; `default` for the one without a name.")
@click.option("--command", metavar="ID", help="Only what concerns this command.")
@click.option("--node", metavar="NODE", help="Only of this node.")
@click.option(
    "--outcome", type=click.Choice(["allowed", "denied", *sorted(state.value for state in TargetState if state.over)]),
    help="Only with this outcome: of a decision, or of a command that has ended.",
)  # fmt: skip
@click.option("--since", default="", metavar="TIME", help="Only from this time on: 2026-11-23 or 2026-11-23T10:00:00Z.")
@click.option("--until", default="", metavar="TIME", help="Only before this time.")
@click.option("--limit", type=IntegerRange(1), default=1000, show_default=True, help="The newest of these.")
@click.argument("folder", type=FOLDER)
def ls(folder: Path, output: str, since: str, until: str, limit: int, tenant: str | None, **wanted: str | None) -> None:
    """List what the audit log in FOLDER has recorded, the oldest first. It does not check it: `verify` does."""
    from collections import deque

    import msgspec

    from fairlead.audit.verification import read_lines
    from fairlead.tenant import shown_tenant

    found = deque(
        (
            line
            for line in read_lines(folder)
            if line.time >= since
            and tenant in (None, shown_tenant(line.tenant))
            and not (until and line.time >= until)
            and all(value in (None, getattr(line, name)) for name, value in wanted.items())
        ),
        maxlen=limit,
    )
    shown = sorted(found, key=lambda line: (line.time, line.node, line.seq))
    head = ("TIME", "SUBJECT", "ACTION", "WHAT", "WHOM", "OUTCOME")
    rows = []
    for line in shown:
        whom = line.agent or line.command or line.selector or ("-" if line.count is None else f"{line.count} shown")
        rows.append((line.time, line.subject, line.action, _what(line), whom, line.outcome))
    more = [
        (
            line.node, str(line.seq), shown_tenant(line.tenant), line.digest[:12] or "-", line.trace or "-",
            line.reason or "-",
        )
        for line in shown
    ]  # fmt: skip
    wide = [(*row, *rest) for row, rest in zip(rows, more, strict=True)]
    view = View(
        [f"{line.node}:{line.seq}" for line in shown],
        {"lines": msgspec.to_builtins(shown)},
        format_table(head, rows),
        format_table((*head, "NODE", "LINE", "TENANT", "DIGEST", "TRACE", "REASON"), wide),
    )
    click.echo(render(view, output), nl=False)


def _what(line: AuditLine) -> str:
    from fairlead.audit.signed_head import SIGNED, find_heads

    if line.action == SIGNED and (signed := next(find_heads(line.detail), None)):
        return f"up to line {signed.head.seq}"  # all of it, some 270 characters, is in JSON and YAML
    return line.method or line.detail or (line.command if line.agent else "") or "-"


@audit.command("verify", short_help="Check that an audit log is whole.")
@click.option("--head", "known", metavar="LINE:HASH", help="A head that was noted earlier and must be in the log.")
@click.option(
    "--public-key", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The keys that may sign heads, in lines of OpenSSH's format.",
)  # fmt: skip
@click.option(
    "--heads", multiple=True, type=click.File("r", errors="replace"),
    help="A file in which signed heads were kept elsewhere, such as the node's log; - for the standard input.",
)  # fmt: skip
@click.option("--partial", is_flag=True, help="The first files of the logs may be somewhere else.")
@click.argument("folder", type=FOLDER)
@click.pass_context
def verify(
    ctx: click.Context, folder: Path, known: str | None, public_key: Path | None, heads: Sequence[TextIO], partial: bool
) -> None:
    """Check that no line of the audit log in FOLDER was removed, changed or moved.

    With --public-key, also that the node's key has signed the log, and up to which line. Whoever may write in FOLDER
    can cut the log off behind an earlier signed head: give --heads a copy of the node's own log, or of what the
    collector has, to find that out.

    Without a key, note the heads that this prints where the gateway cannot write, and give one to --head later: only
    that shows that a whole log was written anew. Exits with 1 if something is wrong.
    """
    from fairlead.audit.verification import verify_folder

    reports = verify_folder(folder, _evidence(known, public_key, heads, partial))
    if not reports:
        raise click.UsageError(f"{folder} has no audit log: expected files such as node-1.000000000001.jsonl")
    for report in reports:
        for fault in report.faults:
            click.echo(plain(fault), err=True)
        if not report.faults:
            click.echo(_whole(report))
    ctx.exit(exit_codes.FAILED if any(report.faults for report in reports) else exit_codes.OK)


def _evidence(known: str | None, public_key: Path | None, heads: Sequence[TextIO], partial: bool) -> Evidence:
    from fairlead.audit.records import Head
    from fairlead.audit.signed_head import find_heads
    from fairlead.audit.verification import Evidence
    from fairlead.signing.keys import parse_public_keys

    head = None if known is None else Head.parse(known)
    if known is not None and head is None:
        raise click.BadParameter(f"{known!r}: expected LINE:HASH, as an earlier check printed it", param_hint="--head")
    if heads and public_key is None:
        raise click.BadParameter("expected --public-key as well, to check who has signed them", param_hint="--heads")
    keys = [] if public_key is None else parse_public_keys(public_key.read_text(errors="replace"), str(public_key))
    noted = []
    for file in heads:
        of_file = [one for line in file for one in find_heads(line)]
        if not of_file:
            raise click.BadParameter(
                f"{file.name} has no signed head: expected texts that begin with fairlead-audit-head/1, as the node "
                "logs them at the level info",
                param_hint="--heads",
            )
        noted += of_file
    return Evidence(head, keys, noted, partial)


def _whole(report: NodeReport) -> str:
    said = f"{report.node}: lines {report.first} to {report.head.seq} are whole; head {report.head}"
    if (signed := report.signed) is None:
        return said
    later = report.head.seq - signed.head.seq - 1  # without the line of the signed head itself
    after = (
        "nothing follows it" if not later else f"{later} line{'s follow' if later > 1 else ' follows'}, not signed yet"
    )
    return f"{said}\n{report.node}: signed up to line {signed.head.seq} at {signed.time} with {signed.key}; {after}"
