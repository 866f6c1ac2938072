"""The library of methods is what the agent takes: the same methods and arguments; nothing is refused wrongly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

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
from fairlead.methods.library import LIBRARY, check_arguments, check_payload

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
    if payload is not None:
        check_payload(method, msgspec.json.encode(payload))


def names_of(method: str) -> set[str]:
    return {field.name for field in msgspec.structs.fields(LIBRARY[method].arguments)}


def refusal(check: Callable[[str, Any], None], method: str, payload: object) -> str:
    try:
        check(method, payload)
    except InvalidRequest as e:
        return e.message
    return ""


@pytest.mark.parametrize("payload", PAYLOADS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_both_checks_refuse_the_same_but_for_unknown_arguments(method: str, payload: object) -> None:
    if payload is None or (isinstance(payload, dict) and not payload.keys() <= names_of(method)):
        return
    said = [refusal(check_arguments, method, payload), refusal(check_payload, method, msgspec.json.encode(payload))]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("method", "payload", "said"),
    [
        ("service.restart", {}, "missing argument unit: expected a string (the name of a unit, such as nginx.service)"),
        (
            "log.tail",
            {"path": "/a", "lines": "5"},
            'invalid argument lines "5": expected a whole number >= 0 and <= 10000',
        ),
        ("proc.list", {"all": True}, 'unknown argument "all": expected no arguments'),
        ("proc.signal", {"pid": 5, "signal": "NONE"}, 'invalid argument signal "NONE": expected CONT or HUP or'),
    ],
)
def test_wrong_arguments_are_explained(method: str, payload: object, said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        check_arguments(method, payload)
    assert said in error.value.message
    assert error.value.message.startswith(f"{method}: ")


def test_a_method_that_is_not_in_the_library_takes_anything() -> None:
    check_arguments("backup.start", {"anything": [1, 2]})
    check_payload("backup.start", b"[1, 2]")


def test_arguments_of_a_newer_library_pass_the_gateway_and_not_the_command_line() -> None:
    check_payload("sys.info", b'{"disks": true}')
    with pytest.raises(InvalidRequest) as error:
        check_payload("log.tail", b'{"path": "/a", "lines": "5", "since": 5}')
    assert error.value.details["field"] == "payload.lines"
    with pytest.raises(InvalidRequest) as error:
        check_arguments("log.tail", {"path": "/a", "since": 5})
    assert error.value.details["field"] == "payload.since"


def test_schemas_are_complete_and_refer_to_nothing() -> None:
    for method in LIBRARY.values():
        for schema in method.schemas().values():
            assert schema["type"] == "object", method.name
            assert "$ref" not in msgspec.json.encode(schema).decode()
