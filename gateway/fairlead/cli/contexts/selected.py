"""Which context a command uses: that of --context, else that of FAIRLEAD_CONTEXT, else the current one.

`api_options` asks. An API that is named by a flag or a variable goes before any context, and then no context's token is
sent to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
from click.core import ParameterSource

from fairlead.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from fairlead.cli.contexts.contexts_file import Context

F = TypeVar("F", bound=Callable[..., object])

_SELECTED: Final = "fairlead.context"
"""The member of click's `meta` with the context that the API comes from."""
VARIABLE: Final = "FAIRLEAD_CONTEXT"
_TENANT: Final = f"{_SELECTED}.tenant"


@dataclass(frozen=True, slots=True)
class SelectedContext:
    name: str
    context: Context

    def trust(self) -> ssl.SSLContext | None:
        """The certificate authorities of its API; None for those of the system."""
        if not self.context.ca:
            return None
        from fairlead.oidc.provider import trusted_context

        return trusted_context(Path(self.context.ca))


def context_option(command: F) -> F:
    """Add --context, which `apply_context` reads."""
    return click.option(
        "--context",
        envvar=VARIABLE,
        show_envvar=True,
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="Context to use in place of the current one: `fairlead context ls` lists them. --api and FAIRLEAD_API go "
        "before it.",
    )(command)


def tenant_option(command: F) -> F:
    """Add --tenant, which `selected_tenant` returns."""
    return click.option(
        "--tenant",
        envvar="FAIRLEAD_TENANT",
        show_envvar=True,
        metavar="TENANT",
        expose_value=False,
        callback=_remember_tenant,
        help="Tenant to act in, if you have roles in several, or the platform token; it defaults to that of the "
        "context.",
    )(command)


def selected_tenant() -> str:
    """The tenant that this command names, or its context; "" for none."""
    ctx = click.get_current_context(silent=True)
    named = None if ctx is None else ctx.meta.get(_TENANT)
    selected = selected_context()
    return str(named or (selected.context.tenant if selected is not None else ""))


def check_tenant(name: str) -> str:
    """Raises BadParameter for what cannot be the name of a tenant."""
    from fairlead.tenant import TENANT_RULE, parse_tenant

    if name and parse_tenant(name) is None:
        raise click.BadParameter(f"{name!r}: expected {TENANT_RULE}", param_hint="--tenant")
    return name


def apply_context(ctx: click.Context, param: click.Parameter, api: str) -> str:
    """The callback of --api: the API of the context, unless one was named."""
    if ctx.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT:
        return api
    try:
        selected = find_context(ctx)
    except ConfigError:
        if not ctx.resilient_parsing:  # a shell that completes cannot show an error
            raise
        return api
    if selected is None:
        return api
    ctx.meta[_SELECTED] = selected
    return selected.context.api


def selected_context() -> SelectedContext | None:
    """The context that the API of this command comes from, if it comes from one."""
    ctx = click.get_current_context(silent=True)
    found = None if ctx is None else ctx.meta.get(_SELECTED)
    return found if isinstance(found, SelectedContext) else None


def find_context(ctx: click.Context | None, name: str | None = None) -> SelectedContext | None:
    """The context with this name, or that --context names, or the current one. Raises ConfigError."""
    from fairlead.cli.contexts.contexts_file import read_contexts

    asked = name or (ctx.meta.get(f"{_SELECTED}.name") if ctx is not None else None)
    contexts = read_contexts()
    chosen = asked or contexts.current
    return SelectedContext(chosen, contexts.find(chosen)) if chosen else None


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[f"{_SELECTED}.name"] = value


def _remember_tenant(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[_TENANT] = check_tenant(value or "")
