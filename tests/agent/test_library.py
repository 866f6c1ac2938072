"""The library of methods is what the agent takes: the same methods and arguments; nothing is refused wrongly."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from fairlead.agent.builtin.contents.kept_contents import KeptContents
from fairlead.agent.builtin.files.disk_threads import DiskThreads
from fairlead.agent.builtin.files.path_guard import PathGuard
from fairlead.agent.builtin.methods import METHODS, MethodContext
from fairlead.agent.builtin.options import Options
from fairlead.agent.commands.handler import make_handler
from fairlead.agent.errors import CommandError
from fairlead.agent.host.fact_reader import FactReader
from fairlead.errors import InvalidRequest
from fairlead.methods.library import LIBRARY, check_arguments

DISK = DiskThreads()
CONTEXT = MethodContext(
    Options(), DISK, PathGuard(), PathGuard(), KeptContents(DISK, None), FactReader({}, print).read_again
)
PAYLOADS: list[object] = [
    None, {}, {"argv": ["true"]}, {"argv": []}, {"argv": "true"}, {"argv": ["a"], "env": {"A": "b"}, "stdin": True},
    {"path": "/etc/hosts"}, {"path": "/a", "offset": -1}, {"path": "/a", "mode": "0644", "size": 5}, {"path": 5},
    {"path": "/a", "sha256": "x"}, {"path": "/a", "mode": "a"}, {"unit": "nginx.service"}, {"unit": "-x"},
    {"unit": "a b"}, {"unit": "a*"}, {"unit": "a@b\\x2d.service", "lines": 5}, {"unit": "a", "lines": -1},
    {"path": "/a", "follow": True, "lines": 10_000}, {"lines": 10_001}, {"pid": 5}, {"pid": 0}, {"pid": "5"},
    {"pid": 5, "signal": "HUP", "started": 1.5}, {"pid": 5, "signal": "SEGV"}, {"unknown": 1},
    {"cols": 5, "rows": 5, "term": "vt100"}, [], "text",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_the_library_has_the_arguments_of_each_method(method: str) -> None:
    declared = {
        field.name: field.default if not field.required and field.default is not msgspec.NODEFAULT else None
        for field in msgspec.structs.fields(LIBRARY[method].arguments)
    }
    parameters = inspect.signature(METHODS[method](CONTEXT)).parameters
    taken = {name: one for name, one in parameters.items() if name not in ("self", "command")}
    assert list(declared) == list(taken)
    for name, one in taken.items():
        if one.default is not one.empty and one.default not in ({}, []):
            assert declared[name] == one.default, name
    required = {field.name for field in msgspec.structs.fields(LIBRARY[method].arguments) if field.required}
    assert required == {name for name, one in taken.items() if one.default is one.empty}


def test_the_library_has_no_method_that_agents_have_not() -> None:
    assert sorted(LIBRARY) == sorted(METHODS) == list(LIBRARY)


@pytest.mark.parametrize("payload", PAYLOADS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_what_the_agent_takes_is_not_refused_before(method: str, payload: object) -> None:
    handler = make_handler(method, METHODS[method](CONTEXT), None)
    try:
        handler.arguments(b"" if payload is None else msgspec.json.encode(payload))
    except CommandError:
        return
    if isinstance(payload, dict) and not str(payload.get("path", "/")).startswith("/"):
        return  # the agent refuses it too, when it looks at the path
    check_arguments(method, payload)


@pytest.mark.parametrize(
    ("method", "payload", "said"),
    [
        ("service.restart", {}, "missing required field `unit`: expected unit"),
        ("log.tail", {"path": "/a", "lines": "5"}, "Expected `int`, got `str` - at `$.lines`"),
        ("proc.list", {"all": True}, "unknown field `all`: expected no arguments"),
        ("proc.signal", {"pid": 5, "signal": "NONE"}, "Invalid enum value 'NONE' - at `$.signal`"),
    ],
)
def test_wrong_arguments_are_explained(method: str, payload: object, said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        check_arguments(method, payload)
    assert said in error.value.message
    assert error.value.message.startswith(f"{method}: ")


def test_a_method_that_is_not_in_the_library_takes_anything() -> None:
    check_arguments("backup.start", {"anything": [1, 2]})


def test_schemas_are_complete_and_refer_to_nothing() -> None:
    for method in LIBRARY.values():
        for schema in method.schemas().values():
            assert schema["type"] == "object", method.name
            assert "$ref" not in msgspec.json.encode(schema).decode()
