"""Runs the checks of several servers and prints what they find, for people or as JSON.

Used by `fairlead doctor` and `fairlead redis check`.
"""

from __future__ import annotations

import sys

import click
import msgspec

from fairlead.cli import exit_codes
from fairlead.cli.doctor.checks import Check, CheckResult, run_checks
from fairlead.cli.output.formats import as_json, has_colours
from fairlead.text import plain


async def report_checks(servers: list[tuple[str, list[Check]]], output: str) -> int:
    """Run the checks and print their results as they come, or as one JSON document. Returns the exit code."""
    results = await _run(servers, printing=output == "table")
    succeeded = all(result.ok for result in results)
    if output == "json":
        click.echo(as_json({"ok": succeeded, "checks": msgspec.to_builtins(results)}))
    else:
        failed = sum(result.ok is False for result in results)
        click.echo("all checks succeeded" if succeeded else f"{failed} of {len(results)} checks failed", err=True)
    return exit_codes.OK if succeeded else exit_codes.FAILED


async def _run(servers: list[tuple[str, list[Check]]], printing: bool) -> list[CheckResult]:
    results: list[CheckResult] = []
    for target, checks in servers:
        if printing:
            click.echo(f"{target}")
        async for result in run_checks(target, checks):
            results.append(result)
            if printing:
                _print(result)
    return results


def _print(result: CheckResult) -> None:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    good, bad, skipped, arrow = ("✓", "✗", "-", "→") if unicode else ("ok", "FAILED", "-", "->")
    sign, colour = (good, "green") if result.ok else (skipped, "yellow") if result.ok is None else (bad, "red")
    sign = click.style(sign, fg=colour) if has_colours() else sign
    click.echo(f"  {sign} {result.name.ljust(8)} {plain(result.message)}")
    if result.advice:
        click.echo(f"      {arrow} {plain(result.advice)}")
    sys.stdout.flush()
