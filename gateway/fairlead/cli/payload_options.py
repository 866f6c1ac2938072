"""The arguments of a method on the command line: KEY=TEXT, KEY:=JSON, --json for all of them, or a program after `--`.

`call`, `run` and `schedules add` read them in the same way. A text is never guessed to be something else, so that
`version=1.10` and `name=true` arrive as they were typed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])
PROGRAM: Final = "fairlead.program"
"""The place in the context of what follows `--`."""
PROGRAM_ARGUMENT: Final = {"exec": "argv", "script": "arguments"}
"""The argument that what follows `--` is, by method."""
FILE_BYTES: Final = 1 << 20
"""The largest file that a gateway stores for many agents."""


class MethodCommand(click.Command):
    """A command that runs any method. What follows `--` stays as it is: `exec` takes it as its program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[PROGRAM] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


def payload_options(command: F) -> F:
    """Add --json, --file, --unchecked and the arguments, which come after the arguments of the command itself."""
    document = click.option(
        "--json", "document", metavar="JSON", help="All arguments as one JSON value; @FILE reads it, @- stdin."
    )
    unchecked = click.option(
        "--unchecked",
        is_flag=True,
        help="Pass arguments on that do not fit the built-in method, to agents that have a method of their own under "
        "this name.",
    )
    file = click.option(
        "--file", type=click.File("rb"), metavar="FILE",
        help="A file of at most 1 MiB that is stored once for all agents: the script of `script`, the content of "
        "`file.put`.",
    )  # fmt: skip
    words = click.argument("words", nargs=-1, metavar="[KEY=TEXT|KEY:=JSON]... [-- PROGRAM [ARGUMENT]...]")
    return document(file(unchecked(words(command))))


def read_payload(
    method: str, document: str | None, words: tuple[str, ...], file: IO[bytes] | None, *, unchecked: bool
) -> tuple[object, bytes | None]:
    """The payload, and the file that goes with it. Raises InvalidRequest and UsageError."""
    payload = parse_payload(method, document, words)
    data = None if file is None else _read_file(file)
    if data is not None:
        payload = _with_file(method, payload, data)
    if not unchecked:
        check_payload(method, payload, words, file=data is not None)
    return payload, data


def parse_payload(method: str, document: str | None, words: tuple[str, ...]) -> object:
    """The value of --json, or a mapping of the arguments. Raises UsageError."""
    program = click.get_current_context().meta.get(PROGRAM, [])
    if document is not None:
        if words or program:
            raise click.UsageError("--json beside KEY=TEXT or -- PROGRAM: expected one of them")
        return _read_document(document)
    if not program:
        return parse_arguments(words)
    if (name := PROGRAM_ARGUMENT.get(method)) is None:
        raise click.UsageError(
            f"{method} takes no program after --: expected KEY=TEXT or KEY:=JSON, or the method exec"
        )
    given = parse_arguments(words)
    if name in given:
        raise click.UsageError(f"{name} is given twice, also after --: give it once")
    return {**given, name: program}


def _read_file(file: IO[bytes]) -> bytes:
    data = file.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise click.UsageError(
            f"--file {file.name} is too large: expected at most 1 MiB ({FILE_BYTES} bytes), which is stored once for "
            "all agents; `fairlead cp` copies larger files to one agent"
        )
    return data


def _with_file(method: str, payload: object, data: bytes) -> dict[str, object]:
    """The payload with the digest and the size of a file that is stored for all agents, as the method takes them."""
    import hashlib

    if not isinstance(payload, dict):
        raise click.UsageError("--file needs a payload that is an object: expected KEY=TEXT, or an object in --json")
    digest, size = hashlib.sha256(data).hexdigest(), len(data)
    if method == "file.put":
        return {"content": True, "sha256": digest, "size": size, **payload}
    return {"digest": digest, "size": size, **payload}


def check_payload(method: str, payload: object, words: tuple[str, ...], *, file: bool = False) -> None:
    """Check the payload of a built-in method, which came from `words` or --json. `file`: whether a file comes with it.
    Raises InvalidRequest and UsageError."""
    from fairlead.errors import InvalidRequest
    from fairlead.methods.library import LIBRARY

    known = LIBRARY.get(method)
    if known is None:
        return
    fields = known.arguments.__struct_fields__
    if file and not {"digest", "content"} & set(fields):
        raise click.UsageError(f"{method} takes no --file: expected a method that does, which are script and file.put")
    if "digest" in fields and isinstance(payload, dict) and "digest" not in payload:
        raise click.UsageError(f"{method} needs a file: expected --file FILE")
    try:
        known.check(payload)
    except InvalidRequest as e:
        given = payload.get(str(e.details["field"]).removeprefix("payload.")) if isinstance(payload, dict) else None
        known_name = str(e.details["field"]).removeprefix("payload.") in fields
        if not words or not known_name or not isinstance(given, str) or "expected a string" in e.message:
            raise
        raise InvalidRequest(f"{e.message} (KEY:=JSON passes what is not a text)", **e.details) from e


def check_input(method: str, payload: object, *, file: bool, sends: bool = False, agent: str = "") -> None:
    """Raises UsageError if the method would wait in vain for a file or an input. `agent` is that of a call, to which an
    input can be sent; a run and a schedule have none."""
    from fairlead.methods.library import LIBRARY

    awaited = "" if (known := LIBRARY.get(method)) is None else known.awaits(payload)
    if (awaited == "content" and not file) or (awaited == "input" and not agent):
        raise click.UsageError(f"{method} needs a file: expected --file FILE")
    if awaited == "input" and not sends:
        raise click.UsageError(
            f"{method} writes what comes in: expected --file FILE, or -i and a pipe, such as "
            f"`cat FILE | fairlead call -i {agent} {method} …`, or `fairlead cp FILE {agent}:/PATH`"
        )


def parse_arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """KEY=TEXT and KEY:=JSON as a mapping. Raises BadParameter for what is neither, and for a key that comes twice."""
    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        as_json = key.endswith(":")
        name = key[:-1] if as_json else key
        if not sign or not name:
            raise click.BadParameter(
                f"{word!r}: expected KEY=TEXT or KEY:=JSON (the program of exec goes after --)", param_hint="argument"
            )
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
