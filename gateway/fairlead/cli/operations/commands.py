"""`fairlead drain`, `rebalance` and `disconnect`: create a LinkOperation, wait for its end, or cancel it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlead.cli import exit_codes
from fairlead.cli.click_extensions import IntegerRange
from fairlead.cli.operations.options import cluster_options, complete_gateway, complete_pod, operation_options
from fairlead.text import plain

if TYPE_CHECKING:
    from fairlead.cli.operations.link_operations import LinkOperation, LinkOperations, Spec

POLL = 1.0
"""Seconds between two reads of an operation: the operator writes its status at most once a second."""
SILENCE = 30.0
"""Seconds for which the API server may be unreachable while --wait waits. The operation continues without this
command."""


@click.command(short_help="Empty and replace one gateway pod.")
@cluster_options
@operation_options
@click.argument("gateway", metavar="GATEWAY", shell_complete=complete_gateway)
@click.argument("pod", metavar="POD", shell_complete=complete_pod)
@click.pass_context
def drain(ctx: click.Context, /, gateway: str, pod: str, **options: str | int | bool | None) -> None:
    """Empty one pod of a LinkGateway and have it replaced: fairlead drain edge edge-6d5f7c9b8-x2x7q

    Its agents move to other pods at the pace that the fleet can take. Creates a LinkOperation, prints its name, and
    does not wait for its end unless --wait is given.
    """
    ctx.exit(_operate(gateway, {"type": "Drain", "pod": pod}, options))


@click.command(short_help="Move links from full gateway pods to others.")
@cluster_options
@operation_options
@click.argument("gateway", metavar="GATEWAY", shell_complete=complete_gateway)
@click.pass_context
def rebalance(ctx: click.Context, /, gateway: str, **options: str | int | bool | None) -> None:
    """Move links from the full pods of a LinkGateway to the others now: fairlead rebalance edge

    The operator does so by itself when the pods are uneven for half a minute; this does not wait for that. Creates a
    LinkOperation, prints its name, and does not wait for its end unless --wait is given.
    """
    ctx.exit(_operate(gateway, {"type": "Rebalance"}, options))


@click.command(short_help="Close the links of many agents, at a steady rate.")
@cluster_options
@operation_options
@click.option(
    "-l", "--selector", default="", metavar="SELECTOR", help="Agents by labels and facts: 'env in (prod,dev)'."
)
@click.option(
    "--rate", type=IntegerRange(1, 1000), default=50, show_default=True, metavar="LINKS",
    help="Links closed per second at most; the fleet's budget of moves may allow fewer.",
)  # fmt: skip
@click.option(
    "--retry-after", type=IntegerRange(0, 30), metavar="SECONDS",
    help="When each agent connects again. Default: by its usual policy.",
)  # fmt: skip
@click.argument("gateway", metavar="GATEWAY", shell_complete=complete_gateway)
@click.argument("agents", nargs=-1, metavar="[AGENT]...")
@click.pass_context
def disconnect(
    ctx: click.Context,
    /,
    gateway: str,
    agents: tuple[str, ...],
    selector: str,
    rate: int,
    retry_after: int | None,
    **options: str | int | bool | None,
) -> None:
    """Close the links of agents that match a selector, or are named: fairlead disconnect edge -l env=prod

    The agents connect again, and their commands continue. `fairlead agents disconnect` closes one link through the API.
    Creates a LinkOperation, prints its name, and does not wait for its end unless --wait is given.
    """
    if not options["cancel"] and bool(selector) == bool(agents):
        raise click.UsageError("invalid choice of agents: expected either --selector, or their ids after GATEWAY")
    wanted: Spec = {"selector": selector} if selector else {"agents": list(agents)}
    wanted["ratePerSecond"] = rate
    if retry_after is not None:
        wanted["retryAfterSeconds"] = retry_after
    ctx.exit(_operate(gateway, {"type": "Disconnect", "disconnect": wanted}, options))


def _operate(gateway: str, wanted: Spec, options: dict[str, str | int | bool | None]) -> int:
    """Do what the options of one command ask for; returns the exit code."""
    from fairlead.cli.operations.link_operations import LinkOperations

    cluster = {name: str(options[name]) for name in ("kubeconfig", "context", "namespace")}
    operations = LinkOperations(**cluster)
    operations.check_gateway(gateway)  # otherwise the operation would fail only later
    if options["cancel"]:
        return _cancel(operations, gateway, wanted)
    times = {"activeDeadlineSeconds": options["deadline"], "ttlSecondsAfterFinished": options["keep"]}
    made = operations.create(gateway, {**wanted, **times, "reason": options["reason"]})
    click.echo(made.name)
    if options["wait_seconds"] is None:
        hint = f"kubectl --namespace {operations.namespace} get linkoperation {made.name}"
        click.echo(f"created; `{hint}` shows its progress", err=True)
        return exit_codes.OK
    return _wait(operations, made, float(options["wait_seconds"]))


def _cancel(operations: LinkOperations, gateway: str, wanted: Spec) -> int:
    kind = str(wanted["type"])
    found = operations.unfinished(gateway, kind, str(wanted.get("pod", "")))
    for one in found:
        operations.cancel(one.name)
        click.echo(one.name)
    if not found:
        click.echo(f"fairlead: {gateway} has no {kind} that could be cancelled: all have ended", err=True)
        return exit_codes.FAILED
    click.echo("cancelled; what has begun in the cluster, such as the termination of a pod, continues", err=True)
    return exit_codes.OK


def _wait(operations: LinkOperations, made: LinkOperation, seconds: float) -> int:
    """Report what the operation does until it has ended; returns the exit code."""
    import time

    from fairlead.cli.operations.link_operations import ClusterUnavailable

    shown, deadline, answered_at = "", time.monotonic() + seconds, time.monotonic()
    try:
        while time.monotonic() < deadline:
            try:
                found = operations.read(made.name)
                answered_at = time.monotonic()
            except ClusterUnavailable:
                if time.monotonic() - answered_at > SILENCE:
                    raise
                time.sleep(POLL)
                continue
            line = f"{found.phase or 'Waiting for the operator'} {found.reason}".strip()
            line = plain(f"{line}: {found.message}" if found.message else line)
            if line != shown:
                click.echo(line, err=True)
                shown = line
            if found.ended:
                return _exit_code(found)
            time.sleep(POLL)
    except KeyboardInterrupt:
        click.echo(f"{made.name} continues; --cancel instead of --wait ends it", err=True)
        raise
    click.echo(f"fairlead: {made.name} has not ended within {seconds:g} s; it continues", err=True)
    return exit_codes.DEADLINE


def _exit_code(ended: LinkOperation) -> int:
    if ended.phase == "Succeeded":
        return exit_codes.OK
    return exit_codes.DEADLINE if ended.reason == "DeadlineExceeded" else exit_codes.FAILED
