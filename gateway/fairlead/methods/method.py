"""What a method is for its callers: its arguments, its result, what it sends and whether it changes the host.

`library` declares one for each built-in method. The API and the command line show them, and check arguments with them
before anything is stored or sent. An agent decides for itself: it may have switched a method off, have one of its own
under the same name, or take more arguments, because it is newer. It is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, Literal

import msgspec

from fairlead.errors import InvalidRequest

SHOWN: Final = 80
"""Characters of a wrong value that the error repeats."""

UNCHECKED: Final = (
    "--unchecked, or `unchecked` in the API, passes it on to agents that have a method of their own under this name"
)
"""What the errors of all checks say."""

Effect = Literal["reads", "changes", "runs"]
"""`reads`: it only looks. `changes`: it changes what it names. `runs`: it runs any program."""


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a method: the members of its payload."""


class NoArguments(Arguments):
    """There are none."""


class ResultMembers(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The members of the result of a method."""


@dataclass(frozen=True)
class Method:
    """`output` are the kinds of chunks that it sends, `row` is the type of each row, and `input` says that it takes
    input."""

    name: str
    text: str
    effect: Effect
    arguments: type[Arguments] = NoArguments
    result: type[ResultMembers] | None = None
    output: tuple[str, ...] = ()
    row: type[ResultMembers] | None = None
    input: bool = False
    needs_input: bool = False
    """Whether it does nothing before its input has ended. A run and a schedule have none, except for a content."""

    digest_argument: str = ""
    """The argument with the SHA-256 of the content that it takes; "" if it names none."""

    def content_of(self, payload: object) -> str:
        """The SHA-256 of the content that the method takes by its payload; "" for none."""
        if not isinstance(payload, dict) or (self.needs_input and self.awaits(payload) != "content"):
            return ""
        return str(payload.get(self.digest_argument, "")).lower()

    def awaits(self, payload: object) -> Literal["", "input", "content"]:
        """What the method does nothing without: the input of the command, or the content that it names in its place;
        "" if it needs neither."""
        if not self.needs_input:
            return ""
        return "content" if isinstance(payload, dict) and payload.get("content") is True else "input"

    def check(self, payload: object) -> None:
        """Raises InvalidRequest if the agent would refuse the payload, as far as is known here; None stands for no
        payload. An unknown argument is wrong, too."""
        given: object = {} if payload is None else payload
        if isinstance(given, dict):
            for name in given:
                if name not in self._kinds:
                    raise self._wrong(name, f"unknown argument {_shown(name)}: expected {self.expected()}")
        self._check_known(given)

    def check_json(self, payload: bytes) -> None:
        """Raises InvalidRequest if the payload lacks an argument, or has one of a wrong kind. Unknown arguments pass,
        because the agent may be newer: it knows."""
        try:
            self._decode(payload)
        except (msgspec.ValidationError, RecursionError):
            try:
                self._check_known(msgspec.json.decode(payload))
            except (msgspec.DecodeError, RecursionError) as e:  # JSON has numbers that are no double
                raise self._wrong("", f"invalid payload ({e}): expected an object with {self.expected()}") from e

    def _check_known(self, given: object) -> None:
        if not isinstance(given, dict):
            raise self._wrong("", f"invalid payload {_shown(given)}: expected an object with {self.expected()}")
        for name, (kind, required) in self._kinds.items():
            if name not in given:
                if required:
                    raise self._wrong(name, f"missing argument {name}: expected {_rule(kind)}")
                continue
            try:
                msgspec.convert(given[name], kind)
            except msgspec.ValidationError as e:
                text = f"invalid argument {name} {_shown(given[name])}: expected {_rule(kind)}"
                raise self._wrong(name, text) from e

    def _wrong(self, name: str, text: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self.name}: {text} (see `fairlead methods show {self.name}`; {UNCHECKED})",
            field=f"payload.{name}" if name else "payload", method=self.name,
        )  # fmt: skip

    @cached_property
    def _kinds(self) -> dict[str, tuple[Any, bool]]:
        """The kind of each argument, and whether it has to be given."""
        return {one.name: (one.type, one.required) for one in msgspec.structs.fields(self.arguments)}

    @cached_property
    def _decode(self) -> Callable[[bytes], object]:
        lenient = msgspec.defstruct("Known", [], bases=(self.arguments,), kw_only=True, forbid_unknown_fields=False)
        return msgspec.json.Decoder(lenient).decode

    def expected(self) -> str:
        """The arguments in words."""
        fields = msgspec.structs.fields(self.arguments)
        if not fields:
            return "no arguments"
        return ", ".join(field.name if field.required else f"[{field.name}]" for field in fields)

    def schemas(self) -> dict[str, Any]:
        """The JSON Schemas of arguments, result and row, as far as there are any."""
        kinds = {"arguments": self.arguments, "result": self.result, "row": self.row}
        return {name: _schema(kind) for name, kind in kinds.items() if kind is not None}


def _schema(kind: type) -> dict[str, Any]:
    """The schema of a type, without a reference to itself."""
    made = msgspec.json.schema(kind)
    definitions = made.pop("$defs", {})
    found: dict[str, Any] = definitions.pop(made["$ref"].rpartition("/")[2]) if "$ref" in made else made
    return {**found, "$defs": definitions} if definitions else found


@cache  # also because msgspec leaves a reference cycle for each schema
def _rule(kind: Any) -> str:
    """What a value has to be, in words."""
    schema = msgspec.json.schema(kind)
    choices = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    text = " or ".join(map(_in_words, choices))
    described = next((one["description"] for one in (*choices, schema) if "description" in one), "")
    return f"{text} ({described})" if described else text


def _in_words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(schema["enum"])
    if "pattern" in schema and "description" not in schema:
        return f"a string that matches {schema['pattern']}"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    members = schema.get("items") or schema.get("additionalProperties") or {}
    inner = f" of {members['type']}s" if members else ""
    least = f", at least {schema['minItems']}" if "minItems" in schema else ""
    return " ".join([_NAMES.get(schema.get("type", ""), "JSON") + inner + least, " and ".join(bounds)]).rstrip()


_BOUNDS: Final = {"minimum": ">=", "maximum": "<="}
_NAMES: Final = {
    "string": "a string", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "array": "a list", "object": "an object",
}  # fmt: skip


def _shown(value: object) -> str:
    """The value as JSON, shortened to `SHOWN` characters."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
