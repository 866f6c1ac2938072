"""What a method is for its callers: its arguments, its result, what it sends and whether it changes the host.

`library` declares one for each built-in method, the API and the command line show them, and the command line checks
arguments with them before it sends anything. An agent decides for itself: it may have switched a method off, or have
one of its own under the same name. It is pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from fairlead.errors import InvalidRequest

Effect = Literal["reads", "changes", "runs"]
"""`reads`: it only looks. `changes`: it changes what it names. `runs`: it runs any program."""


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a method: the members of its payload."""


class NoArguments(Arguments):
    """There are none."""


class ResultMembers(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The members of the result of a method."""


@dataclass(frozen=True, slots=True)
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

    def check(self, payload: object) -> None:
        """Raises InvalidRequest if the agent would refuse the payload; None stands for no payload."""
        try:
            msgspec.convert({} if payload is None else payload, self.arguments)
        except msgspec.ValidationError as e:
            raise InvalidRequest(
                f"{self.name}: {e}: expected {self.expected()}", field="payload", method=self.name
            ) from e

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
