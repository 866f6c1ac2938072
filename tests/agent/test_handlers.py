"""Methods and what they answer: every kind of handler, arguments by their types, errors that stay readable."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from fairlead.agent import Agent, Command, CommandError
from fairlead.errors import ConfigError
from fairlead.wire.messages import Ack, Chunk, End

if TYPE_CHECKING:
    from tests.agent.conftest import Gateway, Link

Serve = Callable[[Agent], "asyncio.Task[None]"]


@pytest.fixture
async def link(gateway: Gateway, agent: Agent, serve: Serve) -> Link:
    """A welcomed link. Methods may be registered afterwards, too: they are looked up when a command comes."""
    serve(agent)
    return await gateway.linked()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A real module: a process imports its handler by name."""

    def make(source: str) -> Any:
        name = f"handlers_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        return import_module(name)

    return make


# -- kinds of handlers -----------------------------------------------------------------------------


async def test_a_coroutine_returns_its_result(agent: Agent, link: Link) -> None:
    @agent.command("add")
    async def add(a: int, b: int = 2) -> dict[str, int]:
        return {"sum": a + b}

    await link.command("c1", "add", {"a": 40})
    end = await link.end("c1")
    assert (end.state, json.loads(end.payload), end.total, end.error) == ("ok", {"sum": 42}, 0, None)
    assert [type(m) for _, m in link.heard[1:]] == [Ack, End]
    assert link.of(Ack)[0].state == "accepted"


async def test_a_function_runs_in_a_thread(agent: Agent, link: Link) -> None:
    @agent.command("where")
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    await link.command("c1", "where")
    assert json.loads((await link.end("c1")).payload) is False


async def test_an_async_generator_streams(agent: Agent, link: Link) -> None:
    @agent.command("count")
    async def count(to: int) -> AsyncIterator[object]:
        for n in range(to):
            yield {"n": n}
        yield "text\n"
        yield b"\x00\xff"

    await link.command("c1", "count", {"to": 3})
    end = await link.end("c1")
    assert (end.state, end.total, end.payload) == ("ok", 5, b"")
    assert link.rows("c1") == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert link.output("c1") == b"text\n\x00\xff"
    assert [c.n for c in link.of(Chunk, "c1")] == [0, 1, 2, 3, 4]


async def test_a_generator_streams_from_a_thread(agent: Agent, link: Link) -> None:
    @agent.command("lines")
    def lines() -> Iterator[str]:
        assert threading.current_thread() is not threading.main_thread()
        yield "one\n"
        yield "two\n"

    await link.command("c1", "lines")
    assert (await link.end("c1")).state == "ok"
    assert link.output("c1") == b"one\ntwo\n"


async def test_a_handler_may_write_kinds_of_its_own(agent: Agent, link: Link) -> None:
    @agent.command("logs")
    async def logs(command: Command, text: str) -> str:
        await command.write("log", text)
        await command.write("file", b"x" * 100_000)
        assert 50 < command.time_left <= 60
        assert not command.cancelled
        return command.id

    await link.command("c1", "logs", {"text": "begun"})
    end = await link.end("c1")
    assert json.loads(end.payload) == "c1"
    assert link.output("c1", "log") == b"begun"
    assert link.output("c1", "file") == b"x" * 100_000
    assert max(len(c.payload) for c in link.of(Chunk, "c1")) <= 64 << 10


async def test_a_function_and_a_generator_in_processes(agent: Agent, link: Link, module: Any) -> None:
    made = module(
        "import os\n"
        "def work(n: int): return {'pid': os.getpid(), 'sum': sum(range(n))}\n"
        "def rows(n: int):\n"
        "    for i in range(n): yield {'i': i, 'pid': os.getpid()}\n"
        "    yield 'done'\n"
    )
    agent.command("work", run="process")(made.work)
    agent.command("rows", run="process")(made.rows)
    await link.command("c1", "work", {"n": 10})
    await link.command("c2", "rows", {"n": 3})
    result = json.loads((await link.end("c1")).payload)
    assert result["sum"] == 45
    assert (await link.end("c2")).state == "ok"
    assert [row["i"] for row in link.rows("c2")] == [0, 1, 2]
    assert link.output("c2") == b"done"
    assert len({result["pid"], link.rows("c2")[0]["pid"], os.getpid()}) == 3


@pytest.mark.parametrize(
    ("source", "code", "what"),
    [
        ("def work(): raise ValueError('no such thing')", "handler_failed", "ValueError: no such thing"),
        (
            "from fairlead.agent import CommandError\ndef work(): raise CommandError('odd', 'why', True, n=3)",
            "odd",
            "why",
        ),
        ("import os\ndef work(): os._exit(7)", "handler_failed", "7"),
        ("import os, signal\ndef work(): os.kill(os.getpid(), signal.SIGKILL)", "handler_failed", "9"),
        ("def work(): return lambda: 1", "handler_failed", ""),
        ("import sys\ndef work(): sys.exit('enough')", "handler_failed", ""),
    ],
    ids=["exception", "command-error", "exit", "signal", "unpicklable", "sys-exit"],
)
async def test_failures_in_a_process(agent: Agent, link: Link, module: Any, source: str, code: str, what: str) -> None:
    agent.command("work", run="process")(module(source).work)
    await link.command("c1", "work")
    end = await link.end("c1")
    assert end.state == "error"
    assert end.error is not None
    assert end.error.code == code
    assert what in end.error.message
    if code == "odd":
        assert end.error.temporary
        assert end.error.details == {"n": 3}


async def test_a_handler_that_cannot_be_sent_to_a_process_says_so(agent: Agent, link: Link) -> None:
    def local() -> None: ...

    try:
        agent.command("work", run="process")(local)
    except (ConfigError, TypeError):
        return  # told when it is registered: better still
    await link.command("c1", "work")
    end = await link.end("c1")
    assert end.error is not None
    assert "module" in end.error.message


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (b'{"name": 1}', "name"),
        (b'{"name": "x", "times": "3"}', "times"),
        (b'{"name": "x", "mode": "loud"}', "mode"),
        (b'{"name": "x", "tags": ["a", 1]}', "tags"),
        (b'{"name": "x", "color": "red"}', "color"),
        (b"{}", "name"),
        (b"", "name"),
        (b"[]", ""),
        (b"null", ""),
        (b'{"name": "x"', ""),
        (b'{"name": "\xff"}', ""),
        (b"[" * 100_000, ""),
    ],
    ids=[
        "type",
        "no-coercion",
        "literal",
        "element",
        "unknown",
        "missing",
        "empty",
        "list",
        "null",
        "cut",
        "utf8",
        "deep",
    ],
)
async def test_arguments_that_do_not_fit_are_refused(agent: Agent, link: Link, payload: bytes, named: str) -> None:
    ran: list[str] = []

    @agent.command("greet")
    async def greet(
        name: str,
        times: int = 1,
        mode: Literal["plain", "fancy"] = "plain",
        tags: list[str] | None = None,
    ) -> None:
        ran.append(name)

    await link.command("c1", "greet", payload=payload)
    ack = await link.expect(Ack, "c1")
    assert ack.state == "refused"
    assert ack.error is not None
    assert ack.error.code == "invalid_arguments"
    assert named in ack.error.message
    assert not ack.error.temporary
    # Nothing follows a refusal, and the agent is well.
    await link.command("c2", "greet", {"name": "x", "tags": ["a"]})
    assert (await link.end("c2")).state == "ok"
    assert not link.of(End, "c1")
    assert ran == ["x"]


async def test_an_unknown_method_is_refused(agent: Agent, link: Link) -> None:
    await link.command("c1", "no.such")
    ack = await link.expect(Ack, "c1")
    assert ack.state == "refused"
    assert ack.error is not None
    assert ack.error.code == "unknown_method"
    assert "no.such" in ack.error.message


async def test_a_refused_command_may_be_tried_again(agent: Agent, link: Link) -> None:
    """It never ran, so it is no duplicate: a method may have come with an update."""
    await link.command("c1", "late")
    await link.expect(Ack, "c1")

    @agent.command("late")
    async def late() -> int:
        return 1

    await link.command("c1", "late", attempt=2)
    assert (await link.end("c1")).state == "ok"
    assert [ack.state for ack in link.of(Ack, "c1")] == ["refused", "accepted"]


# -- errors ----------------------------------------------------------------------------------------


async def test_a_command_error_ends_as_it_says(agent: Agent, link: Link) -> None:
    @agent.command("fail")
    async def fail() -> None:
        raise CommandError("disk_full", "no room on /var", temporary=True, free=0, path="/var")

    await link.command("c1", "fail")
    end = await link.end("c1")
    assert end.state == "error"
    assert end.error is not None
    assert (end.error.code, end.error.message, end.error.temporary) == ("disk_full", "no room on /var", True)
    assert end.error.details == {"free": 0, "path": "/var"}


@pytest.mark.parametrize("kind", ["coroutine", "thread", "async-generator", "generator"])
async def test_other_exceptions_end_without_a_traceback(agent: Agent, link: Link, kind: str) -> None:
    async def coroutine() -> None:
        raise KeyError("secret place")

    def thread() -> None:
        raise KeyError("secret place")

    async def async_generator() -> AsyncIterator[str]:
        yield "first"
        raise KeyError("secret place")

    def generator() -> Iterator[str]:
        yield "first"
        raise KeyError("secret place")

    agent.command("fail")(
        {"coroutine": coroutine, "thread": thread, "async-generator": async_generator}.get(kind, generator)
    )
    await link.command("c1", "fail")
    end = await link.end("c1")
    assert end.state == "error"
    assert end.error is not None
    assert end.error.code == "handler_failed"
    assert "KeyError" in end.error.message
    assert "Traceback" not in end.error.message
    assert __file__ not in end.error.message
    if "generator" in kind:
        assert end.total == 1
        assert link.output("c1") == b"first"


async def test_errors_that_do_not_fit_the_wire_are_cut_to_it(agent: Agent, link: Link) -> None:
    @agent.command("long")
    async def long() -> None:
        raise CommandError("c" * 200, "m" * 5000, False, **{f"k{n}": n for n in range(40)})

    @agent.command("raise")
    async def other() -> None:
        raise RuntimeError("m" * 5000)

    @agent.command("details")
    async def details() -> None:
        raise CommandError("code", "message", False, **{"k" * 100: "v" * 100_000})

    for n, method in enumerate(("long", "raise", "details")):
        await link.command(f"c{n}", method)
        end = await link.end(f"c{n}")
        assert end.state == "error"
        assert end.error is not None
        assert 1 <= len(end.error.code) <= 64
        assert len(end.error.message) <= 1024
        assert len(end.error.details) <= 16
        assert all(1 <= len(key) <= 64 for key in end.error.details)


async def test_an_exception_without_words_still_has_some(agent: Agent, link: Link) -> None:
    @agent.command("fail")
    async def fail() -> None:
        raise CommandError("", "")

    await link.command("c1", "fail")
    end = await link.end("c1")
    assert end.error is not None
    assert end.error.code


async def test_results_that_are_not_json(agent: Agent, link: Link) -> None:
    @agent.command("object")
    async def value() -> object:
        return object()

    @agent.command("row")
    async def row() -> AsyncIterator[object]:
        yield {"fine": True}
        yield {"odd": object()}

    @agent.command("thread-row")
    def thread_row() -> Iterator[object]:
        yield {"odd": object()}

    for id, method in enumerate(("object", "row", "thread-row")):
        await link.command(f"c{id}", method)
        end = await link.end(f"c{id}")
        assert (end.state, end.error.code if end.error else "") == ("error", "handler_failed"), method


async def test_a_result_too_large_for_a_message_is_an_error(agent: Agent, link: Link) -> None:
    """The link itself must survive it: a message above the limit would close every link it is repeated on."""

    @agent.command("large")
    async def large() -> str:
        return "x" * (2 << 20)

    @agent.command("row")
    async def row() -> AsyncIterator[object]:
        yield {"large": "x" * 100_000}
        yield "after"

    await link.command("c1", "large")
    end = await link.end("c1")
    assert end.state == "error"
    assert end.error is not None
    assert end.error.code == "handler_failed"
    await link.command("c2", "row")
    end = await link.end("c2")
    # A row is one JSON value in one chunk: it is whole or it is an error, never cut in two.
    assert end.state == "error" or all(link.rows("c2"))


# -- registration ----------------------------------------------------------------------------------


def test_registration_errors(agent: Agent) -> None:
    wrong = (ConfigError, TypeError)

    async def coroutine() -> None: ...
    async def stream() -> AsyncIterator[str]:
        yield ""

    def function() -> None: ...
    def with_command(command: Command) -> None: ...
    def many(*args: int) -> None: ...
    def named(**options: int) -> None: ...
    def positional(a: int, /) -> None: ...

    agent.command("once")(function)
    with pytest.raises(wrong, match="once"):
        agent.command("once")(coroutine)
    for run in ("thread", "process"):
        with pytest.raises(wrong, match="m"):
            agent.command("m", run=run)(coroutine)
        with pytest.raises(wrong, match="m"):
            agent.command("m", run=run)(stream)
    with pytest.raises(wrong, match="m"):
        agent.command("m", run="loop")(function)
    with pytest.raises(wrong, match="m"):
        agent.command("m", run="process")(with_command)
    for odd in (many, named, positional):
        with pytest.raises(wrong, match="m"):
            agent.command("m")(odd)
    # A failed registration leaves nothing behind.
    agent.command("m")(coroutine)


def test_a_decorated_function_is_still_itself(agent: Agent) -> None:
    def function(a: int) -> int:
        return a + 1

    assert agent.command("f")(function) is function
    assert function(1) == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8080", "ws://", "", "ws:///path"])
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(ConfigError):
        Agent(url, "edge-1", "t")


@pytest.mark.parametrize("id", ["", "-x", "a b", "x" * 129, "ä"])
def test_ids_that_cannot_be(id: str) -> None:
    from fairlead.errors import InvalidRequest

    with pytest.raises((InvalidRequest, ConfigError)):
        Agent("ws://127.0.0.1:1", id, "t")


async def test_the_sdk_needs_the_base_install_only(agent_process: Any) -> None:
    source = (
        "import sys, fairlead.agent, fairlead.agent.builtin\n"
        "heavy = {'starlette', 'uvicorn', 'uvloop', 'httptools', 'redis', 'prometheus_client', 'click'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    process = agent_process("-c", source)
    assert await process.exit_code() == 0, process.log
