"""What a method is: a function, how its arguments are checked, and where it runs.

Made by `Agent.command`, asked by the agent for each command. A handler's signature is its schema: the payload must
be a JSON object with these names and types and no others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_type_hints

import msgspec

from fairlead.agent.command import Command, CommandError

Place: TypeAlias = Literal["loop", "thread", "process"]


@dataclass(frozen=True, slots=True)
class Handler:
    """`takes_command`: the first parameter is the Command. `streams`: a generator, sync or async."""

    method: str
    function: Callable[..., Any]
    place: Place
    arguments: type[msgspec.Struct]
    takes_command: bool
    streams: bool

    def parse(self, payload: bytes) -> dict[str, Any]:
        """The keyword arguments in `payload`. Raises CommandError `invalid_arguments`, naming the field."""
        try:
            parsed = msgspec.json.decode(payload or b"{}", type=self.arguments)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as e:
            raise CommandError("invalid_arguments", f"{self.method}: {e}"[:500]) from e
        return {name: getattr(parsed, name) for name in self.arguments.__struct_fields__}


def handler(method: str, function: Callable[..., Any], place: Place | None) -> Handler:
    """Describe `function`. Raises TypeError when it cannot run where it is asked to."""
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    place = place or ("loop" if is_async else "thread")
    if is_async and place != "loop":
        raise TypeError(f"{method}: a coroutine runs on the loop, not in a {place}; make it a plain function")
    if not is_async and place == "loop":
        raise TypeError(f"{method}: a plain function would block the loop; run it in a thread or a process")
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    takes_command = bool(parameters) and hints.get(parameters[0].name) is Command
    if takes_command and place == "process":
        raise TypeError(f"{method}: a handler in a process has no Command; yield what it should send")
    fields: list[Any] = []
    for parameter in parameters[takes_command:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{method}: parameter {parameter.name!r} cannot be given by name")
        kind = hints.get(parameter.name, Any)
        has_default = parameter.default is not parameter.empty
        fields.append((parameter.name, kind, parameter.default) if has_default else (parameter.name, kind))
    arguments = msgspec.defstruct(f"{method} arguments", fields, kw_only=True, forbid_unknown_fields=True)
    streams = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return Handler(method, function, place, arguments, takes_command, streams)
