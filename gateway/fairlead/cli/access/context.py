"""`fairlead context`: names gateways, and says which of them the command line talks to."""

from __future__ import annotations

from pathlib import Path

import click

from fairlead.cli.click_extensions import Group
from fairlead.cli.output.formats import View, output_option, render
from fairlead.cli.output.table import format_table


@click.group(cls=Group)
def context() -> None:
    """Name gateways, and choose the one to talk to."""


@context.command("add", short_help="Add a context, or replace it.")
@click.option("--api", required=True, metavar="URL[,URL]", help="URL of the platform API.")
@click.option("--ca", default="", metavar="FILE", help="PEM file of the authorities for the API's certificate.")
@click.option("--issuer", default="", metavar="URL", help="OpenID Connect issuer at which `fairlead login` logs in.")
@click.option("--issuer-ca", default="", metavar="FILE", help="PEM file of the authorities for the issuer.")
@click.option("--client-id", default="", metavar="ID", help="Client id of the command line at the issuer.")
@click.option("--scopes", metavar="SCOPES", help="Scopes to ask the issuer for, separated by spaces.")
@click.option("--tenant", default="", metavar="TENANT", help="Tenant to act in, if you have roles in several.")
@click.argument("name", metavar="NAME")
def add(
    name: str, api: str, ca: str, issuer: str, issuer_ca: str, client_id: str, scopes: str | None, tenant: str
) -> None:
    """Add the context NAME: where a gateway is, and where its users log in. Nobody is asked yet.

    \b
    fairlead context add prod --api https://fleet.example.com --issuer https://login.example.com --client-id fairlead
    fairlead context use prod
    fairlead login
    """
    from fairlead.cli.contexts.contexts_file import (
        DEFAULT_SCOPES,
        NAME,
        NAME_RULE,
        Context,
        read_contexts,
        write_contexts,
    )
    from fairlead.cli.contexts.selected import check_tenant
    from fairlead.client import addresses, check_address

    if NAME.fullmatch(name) is None:
        raise click.BadParameter(f"{name!r}: expected {NAME_RULE}", param_hint="NAME")
    if bool(issuer) != bool(client_id):
        raise click.UsageError("--issuer and --client-id belong together: give both, or neither")
    check_tenant(tenant)
    for one in [*addresses(api), *([issuer] if issuer else [])]:
        check_address(one)
    contexts = read_contexts()
    files = [str(Path(file).absolute()) if file else "" for file in (ca, issuer_ca)]
    contexts.contexts[name] = Context(api, files[0], issuer, files[1], client_id, scopes or DEFAULT_SCOPES, tenant)
    write_contexts(contexts)
    if contexts.current != name:
        click.echo(f"`fairlead context use {name}` makes it the current one", err=True)


@context.command("use", short_help="Make a context the current one.")
@click.argument("name", metavar="NAME")
def use(name: str) -> None:
    """Make NAME the current context: commands use it unless --context, --api or their variables say otherwise."""
    from fairlead.cli.contexts.contexts_file import read_contexts, write_contexts

    contexts = read_contexts()
    contexts.find(name)
    contexts.current = name
    write_contexts(contexts)


@context.command("ls", short_help="List the contexts.")
@output_option
def ls(output: str) -> None:
    """List the contexts. `*` is beside the current one."""
    import msgspec

    from fairlead.cli.contexts.contexts_file import read_contexts

    contexts = read_contexts()
    names = sorted(contexts.contexts)
    rows = [("*" if name == contexts.current else "", name, contexts.contexts[name].api) for name in names]
    found = [contexts.contexts[name] for name in names]
    more = [(one.issuer or "-", one.client_id or "-", one.tenant or "-") for one in found]
    table = format_table(("CURRENT", "NAME", "API"), rows)
    wide = format_table(
        ("CURRENT", "NAME", "API", "ISSUER", "CLIENT", "TENANT"),
        [(*row, *rest) for row, rest in zip(rows, more, strict=True)],
    )
    click.echo(render(View(names, msgspec.to_builtins(contexts), table, wide), output), nl=False)


@context.command("rm", short_help="Remove a context, with its tokens.")
@click.argument("name", metavar="NAME")
def rm(name: str) -> None:
    """Remove the context NAME, with its tokens. Nothing changes at the gateway or at the issuer."""
    from fairlead.cli.contexts.contexts_file import read_contexts, write_contexts
    from fairlead.cli.contexts.credentials import credentials_path

    contexts = read_contexts()
    contexts.find(name)
    del contexts.contexts[name]
    if contexts.current == name:
        contexts.current = ""
    write_contexts(contexts)
    credentials_path(name).unlink(missing_ok=True)
    credentials_path(name).with_suffix(".lock").unlink(missing_ok=True)
