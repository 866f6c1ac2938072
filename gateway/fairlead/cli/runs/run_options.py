"""The options that say how fast a run goes and when it stops, as `fairlead run` and `fairlead schedules` have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, TypeVar

import click

from fairlead.cli.click_extensions import IntegerRange, NumberRange

F = TypeVar("F", bound=Callable[..., object])


class RunOptions(TypedDict):
    concurrency: int
    ramp: int
    canary: int
    batch: str | None
    batch_by: str | None
    abort_after: str | None
    abort_minimum: int
    deadline: float
    run_deadline: float
    skip_offline: bool
    queue: float | None
    fail_on_exit: bool | None
    late: bool
    spread: float


PROGRAMS = ("exec", "script")
"""Methods that run a program: those of which an exit code counts unless the user says otherwise."""


def pace_options(command: F) -> F:
    """How fast the run goes, and when it stops."""
    for option in reversed(
        (
            click.option("--concurrency", type=IntegerRange(1, 10_000), default=500, show_default=True, metavar="N",
                         help="Targets under way at once, at most."),
            click.option("--ramp", type=IntegerRange(0, 10_000), default=0, metavar="N",
                         help="Begin with N targets at once, and double that after each round."),
            click.option("--canary", type=IntegerRange(0, 10_000), default=0, metavar="N",
                         help="N targets must end well before any other starts."),
            click.option("--batch", metavar="N|N%",
                         help="Batches of N targets, or of N % of them: each begins when the one before has ended."),
            click.option("--batch-by", metavar="KEY",
                         help="Batches by a label or fact: zone by zone, for example; with --batch, N of each zone."),
            click.option("--abort-after", metavar="N|N%",
                         help="Start no more targets once N have failed, or more than N % of those that have ended."),
            click.option("--abort-minimum", type=IntegerRange(1, 100_000), default=20, show_default=True, metavar="N",
                         help="Targets that must have ended before a share of them can abort the run."),
            click.option("--deadline", type=NumberRange(min=0.1, max=86400), default=60, show_default=True,
                         metavar="SECONDS", help="Time limit of each target, from its start."),
            click.option("--run-deadline", type=NumberRange(min=0.1, max=7 * 86400), default=3600, show_default=True,
                         metavar="SECONDS", help="Time limit of the whole run."),
            click.option("--skip-offline", is_flag=True, help="Pass over agents that are offline, not as failures."),
            click.option("--queue", type=NumberRange(min=0.1, max=7 * 86400), metavar="SECONDS",
                         help="Wait so long for agents that are offline, while others go on."),
            click.option("--spread", type=NumberRange(min=0, max=86400), default=0, metavar="SECONDS",
                         help="Spread the starts evenly over so long; each agent has the same place in every run."),
            click.option("--late", is_flag=True,
                         help="Let agents join that match and connect before --run-deadline has passed."),
            click.option("--fail-on-exit/--no-fail-on-exit", default=None,
                         help="Count a target as failed if its program did not exit with 0."
                              "  [default: for exec and script]"),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def pace_members(method: str, terms: RunOptions) -> dict[str, object]:
    """The options of a run of `method` as members of the request. Raises BadParameter."""
    pace: dict[str, object] = {name: terms[name] for name in ("concurrency", "ramp", "canary", "deadline")}
    pace["run_deadline"] = terms["run_deadline"]
    chosen = terms["fail_on_exit"]
    if terms["spread"]:
        pace["spread"] = terms["spread"]
    if terms["late"]:
        pace["late"] = True
    pace["fail_on_exit"] = method in PROGRAMS if chosen is None else chosen
    if terms["queue"] is not None:
        if terms["skip_offline"]:
            raise click.UsageError("--queue and --skip-offline: expected one of them")
        pace["on_offline"] = {"queue": terms["queue"]}
    else:
        pace["on_offline"] = "skip" if terms["skip_offline"] else "fail"
    batches: dict[str, object] = {} if terms["batch_by"] is None else {"by": terms["batch_by"]}
    if terms["batch"] is not None:
        size, share = _number_or_share(terms["batch"], "--batch")
        batches |= {"size": size} if size else {"share": share}
    if batches:
        pace["batches"] = batches
    if terms["abort_after"] is not None:
        failed, share = _number_or_share(terms["abort_after"], "--abort-after")
        if failed:
            pace["abort_after"] = {"failed": failed}
        else:
            pace["abort_above"] = {"share": share, "minimum": terms["abort_minimum"]}
    return pace


def _number_or_share(given: str, option: str) -> tuple[int, float]:
    """One of the two is 0. Raises BadParameter."""
    number = given.removesuffix("%")
    try:
        value = float(number) if given.endswith("%") else int(number)
    except ValueError:
        value = 0
    if given.endswith("%") and 0 < value <= 100:
        return 0, value / 100
    if not given.endswith("%") and 0 < value <= 100_000:
        return int(value), 0.0
    raise click.BadParameter(
        f"{given!r}: expected a number of targets from 1 on, or a share such as 5%", param_hint=option
    )
