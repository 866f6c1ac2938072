"""The options of every command that creates a LinkOperation, and the names that a shell completes for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import CompletionItem

from fairlead.cli.click_extensions import IntegerRange

if TYPE_CHECKING:
    from fairlead.cli.operations.link_operations import LinkOperations

F = TypeVar("F", bound=Callable[..., object])


def cluster_options(command: F) -> F:
    """Add --namespace, --context and --kubeconfig."""
    namespace = click.option("-n", "--namespace", default="", help="Namespace. Default: that of the context.")
    context = click.option("--context", default="", help="Context of the kubeconfig. Default: the current one.")
    kubeconfig = click.option(
        "--kubeconfig", default="", metavar="FILE", help="Kubeconfig. Default: KUBECONFIG, then ~/.kube/config."
    )
    return namespace(context(kubeconfig(command)))


def operation_options(command: F) -> F:
    """Add --reason, --deadline, --keep, --wait and --cancel."""
    reason = click.option(
        "--reason", default="", metavar="TEXT", help="Reason, for those who read the LinkOperation later."
    )
    deadline = click.option(
        "--deadline", type=IntegerRange(30, 86_400), default=3600, show_default=True, metavar="SECONDS",
        help="Seconds after its start at which the operator gives up an operation that has not completed.",
    )  # fmt: skip
    keep = click.option(
        "--keep", type=IntegerRange(0, 31_536_000), default=86_400, show_default=True, metavar="SECONDS",
        help="Seconds after its end at which the LinkOperation is deleted.",
    )  # fmt: skip
    wait = click.option(
        "--wait", "wait_seconds", type=IntegerRange(1, 86_400), is_flag=False, flag_value=3600, metavar="[SECONDS]",
        help="Report the progress until the operation ends; exit with 4 after SECONDS (3600 if left out).",
    )  # fmt: skip
    cancel = click.option(
        "--cancel", is_flag=True, help="Cancel the operations of this kind that have not ended, and create none."
    )
    return reason(deadline(keep(wait(cancel(command)))))


def complete_gateway(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an argument that is a LinkGateway."""
    return _offer(ctx, incomplete, lambda operations: operations.gateways())


def complete_pod(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an argument that is a pod of the LinkGateway before it."""
    gateway = str(ctx.params.get("gateway") or "")
    return _offer(ctx, incomplete, lambda operations: operations.pods(gateway)) if gateway else []


def _offer(ctx: click.Context, start: str, names: Callable[[LinkOperations], list[str]]) -> list[CompletionItem]:
    from fairlead.cli.operations.link_operations import LinkOperations

    try:
        given = {name: str(ctx.params.get(name) or "") for name in ("kubeconfig", "context", "namespace")}
        return [CompletionItem(name) for name in names(LinkOperations(**given)) if name.startswith(start)]
    except Exception:  # a shell cannot show an error while it completes
        return []
