"""`fairlead methods`: the built-in methods of agents, what each takes and returns, and which you may run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.api_options import api_options, call_api
from fairlead.cli.click_extensions import Group
from fairlead.cli.output.formats import View, as_json, output_option, render
from fairlead.cli.output.table import format_table

if TYPE_CHECKING:
    from fairlead.client import Client, MethodInfo


@click.group(cls=Group)
def methods() -> None:
    """List the built-in methods of agents, and show what each takes and returns."""


@methods.command("ls", short_help="List the built-in methods.")
@api_options
@output_option
def ls(api: str, token: str | None, output: str) -> None:
    """List the built-in methods, with what they take and whether a role lets you run them.

    Arguments in brackets may be left out. An agent may have switched a method off, and may have others.
    """
    found = call_api(api, token, lambda client: client.methods())
    click.echo(render(_view(found), output), nl=False)


@methods.command("show", short_help="Show what a method takes and returns.")
@api_options
@output_option
@click.argument("method")
def show(api: str, token: str | None, output: str, method: str) -> None:
    """Show what a method takes and returns: fairlead methods show log.tail"""
    import msgspec

    from fairlead.errors import InvalidRequest

    async def find(client: Client) -> MethodInfo:
        for one in await client.methods():
            if one.name == method:
                return one
        raise InvalidRequest(f"the library has no method {method!r}: `fairlead methods ls` lists those that it has")

    one = call_api(api, token, find)
    rows = [
        ("name", one.name), ("does", one.text), ("effect", one.effect), ("you may run it", _yes(one.allowed)),
        ("input", _yes(one.input)), ("output", ", ".join(one.output) or "-"),
        *(("argument", line) for line in _members(one.arguments)), *(("result", line) for line in _members(one.result)),
        *(("each row", line) for line in _members(one.row)),
    ]  # fmt: skip
    lines = format_table(("MEMBER", "VALUE"), rows)
    click.echo(render(View([one.name], msgspec.to_builtins(one), lines, lines), output), nl=False)


def _view(found: list[MethodInfo]) -> View:
    import msgspec

    head = ("METHOD", "EFFECT", "ALLOWED", "ARGUMENTS")
    rows = [(one.name, one.effect, _yes(one.allowed), _arguments(one.arguments) or "-") for one in found]
    wide = [(*row, ",".join(one.output) or "-", one.text) for row, one in zip(rows, found, strict=True)]
    return View(
        [one.name for one in found],
        {"methods": msgspec.to_builtins(found)},
        format_table(head, rows),
        format_table((*head, "OUTPUT", "DOES"), wide),
    )


def _arguments(schema: dict[str, object]) -> str:
    members, required = _properties(schema), schema.get("required", [])
    assert isinstance(required, list)
    return " ".join(name if name in required else f"[{name}]" for name in members)


def _members(schema: dict[str, object] | None) -> list[str]:
    """Each member of an object in words."""
    lines = []
    for name, about in _properties(schema or {}).items():
        kinds = about.get("type") or [one.get("type", "text") for one in about.get("anyOf", [])]
        kind = " or ".join(kinds) if isinstance(kinds, list) else kinds
        choices = f" ({', '.join(about['enum'])})" if "enum" in about else ""
        default = f", {as_json(about['default'], None)} unless given" if "default" in about else ""
        text = f": {about['description']}" if "description" in about else ""
        lines.append(f"{name}: {kind or 'text'}{choices}{default}{text}")
    return lines


def _properties(schema: dict[str, object]) -> dict[str, dict[str, Any]]:
    found = schema.get("properties", {})
    assert isinstance(found, dict)
    return found


def _yes(value: bool) -> str:
    return "yes" if value else "no"
