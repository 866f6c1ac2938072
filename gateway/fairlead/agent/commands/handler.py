"""A method's handler: the function, how its arguments are checked, and where it runs.

Made by `Agent.command` and used by `CommandRunner`. A handler's signature is its schema: the payload must be a JSON
object with these names and types and no others. Everything that can be wrong with a handler is reported when it is
registered, not when the first command arrives.
"""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_type_hints

import msgspec

from fairlead.agent.commands.command import Command
from fairlead.agent.errors import CommandError
from fairlead.errors import ConfigError

RunsIn: TypeAlias = Literal["loop", "thread", "process"]

NAMES_SHOWN = 500
"""Characters of the names of methods or arguments in an error, of the 1,024 that a message may have."""
FIELD = re.compile(r"`\$\.([^`.\[]+)|field `([^`]+)`")
"""The part of msgspec's messages that names the field."""


@dataclass(frozen=True, slots=True)
class Handler:
    """`takes_command`: the first parameter is the Command. `streams`: the function is a generator, sync or async."""

    method: str
    function: Callable[..., Any]
    runs_in: RunsIn
    takes_command: bool
    streams: bool
    decode: Callable[[bytes], msgspec.Struct]
    expects: str = ""
    """Its arguments, in the words that end the error about a wrong one."""

    def arguments(self, payload: bytes) -> dict[str, Any]:
        """The keyword arguments in `payload`. Raises CommandError `invalid_arguments`, which names the field."""
        try:
            parsed = self.decode(payload or b"{}")
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
            message = "nested too deeply" if isinstance(e, RecursionError) else str(e)
            found = FIELD.search(message)
            field = (found[1] or found[2]) if found else ""
            raise CommandError("invalid_arguments", f"{self.method}: {message}{self.expects}", field=field) from e
        return {name: getattr(parsed, name) for name in parsed.__struct_fields__}

    def check_importable(self) -> None:
        """Raises ConfigError if the function cannot be sent to a child process. This is known only once its module is
        loaded.
        """
        if self.runs_in != "process":
            return
        try:
            pickle.dumps(self.function)
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            raise ConfigError(
                f"the handler of {self.method!r} cannot run in a process: {e}. "
                "Define it at the top level of a module, under its own name"
            ) from e


def make_handler(method: str, function: Callable[..., Any], runs_in: RunsIn | None) -> Handler:
    """The handler that serves `method`. Raises ConfigError when `function` cannot be one."""
    if not 0 < len(method) <= 64:
        raise ConfigError(f"invalid method name {method[:70]!r}: expected 1 to 64 characters")
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    runs_in = runs_in or ("loop" if is_async else "thread")
    if is_async and runs_in != "loop":
        raise ConfigError(f"{method}: a coroutine runs on the event loop, not in a {runs_in}: use a plain function")
    if not is_async and runs_in == "loop":
        raise ConfigError(f"{method}: a plain function would block the event loop: run it in a thread or a process")
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    takes_command = bool(parameters) and hints.get(parameters[0].name) is Command
    if takes_command and runs_in == "process":
        raise ConfigError(f"{method}: a handler in a process has no Command: yield its output")
    fields: list[Any] = []
    for parameter in parameters[takes_command:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"{method}: parameter {parameter.name!r} cannot be passed by name")
        kind = hints.get(parameter.name, Any)
        has_default = parameter.default is not parameter.empty
        fields.append((parameter.name, kind, parameter.default) if has_default else (parameter.name, kind))
    try:
        schema = msgspec.defstruct("arguments", fields, kw_only=True, forbid_unknown_fields=True)
        decoder = msgspec.json.Decoder(schema)
    except TypeError as e:
        raise ConfigError(f"{method}: its parameters cannot be read from JSON: {e}") from e
    streams = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    names = ", ".join(f"[{field[0]}]" if len(field) > 2 else field[0] for field in fields) or "no arguments"
    expects = f" (expected {names[:NAMES_SHOWN]})"
    return Handler(method, function, runs_in, takes_command, streams, decoder.decode, expects)


def unknown_method(method: str, handlers: Mapping[str, Handler]) -> str:
    """What an agent says of a method that it does not have: which ones it has."""
    names = ", ".join(sorted(handlers)) or "none"
    shown = names if len(names) <= NAMES_SHOWN else f"{names[:NAMES_SHOWN].rpartition(',')[0]} …"
    from difflib import get_close_matches  # an agent seldom needs it

    near = get_close_matches(method, handlers, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"this agent has no method {method!r}{meant}: expected one of {shown}"
