"""The arguments of a method on the command line: KEY=TEXT, KEY:=JSON, or --json for all of them.

`call`, `run` and `schedules add` read them in the same way. A text is never guessed to be something else, so that
`version=1.10` and `name=true` arrive as they were typed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


def payload_options(command: F) -> F:
    """Add --json, --unchecked and the arguments, which come after the arguments of the command itself."""
    document = click.option(
        "--json", "document", metavar="JSON", help="All arguments as one JSON value; @FILE reads it, @- stdin."
    )
    unchecked = click.option(
        "--unchecked",
        is_flag=True,
        help="Send the arguments of a built-in method although they do not fit it, for "
        "agents that have another one of this name.",
    )
    words = click.argument("words", nargs=-1, metavar="[KEY=TEXT|KEY:=JSON]...")
    return document(unchecked(words(command)))


def parse_payload(document: str | None, words: tuple[str, ...]) -> object:
    """The value of --json, or a mapping of the arguments. Raises UsageError."""
    if document is None:
        return parse_arguments(words)
    if words:
        raise click.UsageError("--json beside KEY=TEXT: expected one of them")
    return _read_document(document)


def check_payload(method: str, payload: object, words: tuple[str, ...], *, file: bool = False) -> None:
    """Check the payload of a built-in method, which came from `words` or --json. `file`: whether a file comes with it.
    Raises InvalidRequest and UsageError."""
    from fairlead.errors import InvalidRequest
    from fairlead.methods.library import LIBRARY

    known = LIBRARY.get(method)
    if known is None:
        return
    takes_file = "digest" in known.arguments.__struct_fields__
    if file and not takes_file:
        raise click.UsageError(f"{method} takes no --file: expected a method that does, such as script")
    if takes_file and isinstance(payload, dict) and "digest" not in payload:
        raise click.UsageError(f"{method} needs a file: expected `fairlead run {method} --agents ID,ID --file FILE`")
    try:
        known.check(payload)
    except InvalidRequest as e:
        given = payload.get(str(e.details["field"]).removeprefix("payload.")) if isinstance(payload, dict) else None
        if not words or not isinstance(given, str) or "expected a string" in e.message:
            raise
        raise InvalidRequest(f"{e.message} (KEY:=JSON passes what is not a text)", **e.details) from e


def parse_arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """KEY=TEXT and KEY:=JSON as a mapping. Raises BadParameter for what is neither, and for a key that comes twice."""
    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        as_json = key.endswith(":")
        name = key[:-1] if as_json else key
        if not sign or not name:
            raise click.BadParameter(f"{word!r}: expected KEY=TEXT or KEY:=JSON", param_hint="argument")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice: give it once", param_hint="argument")
        found[name] = _decode(value, f"the value of {name!r}") if as_json else value
    return found


def _read_document(text: str) -> object:
    """The value of --json. Raises BadParameter if its file cannot be read, or it is no JSON."""
    if not text.startswith("@"):
        return _decode(text, "--json")
    if text == "@-":
        return _decode(_stdin_text(), "stdin")
    try:
        return _decode(Path(text[1:]).read_text("utf-8"), text[1:])
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "expected UTF-8"
        raise click.BadParameter(f"cannot read {text[1:]}: {reason}", param_hint="--json") from e


def _stdin_text() -> str:
    import sys

    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as e:
        raise click.BadParameter("stdin is not UTF-8: expected JSON in UTF-8", param_hint="--json") from e


def _decode(text: str, what: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as e:
        raise click.BadParameter(
            f'{what} is not JSON ({e}): expected such as 5, true, [1,2] or "text"', param_hint="argument"
        ) from e
