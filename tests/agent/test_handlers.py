"""Every kind of handler: coroutines, threads, generators and processes, and what each of them answers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from fairlead.agent import Agent, Command
from fairlead.errors import ConfigError
from fairlead.wire.messages import Ack, Chunk, End

from support.agent.fixtures import MakeModule
from support.agent.scripted_link import Link


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


async def test_a_handler_may_write_chunks_of_its_own_kinds(agent: Agent, link: Link) -> None:
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


async def test_a_function_and_a_generator_run_in_processes(agent: Agent, link: Link, module: MakeModule) -> None:
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
async def test_a_failure_in_a_process_is_reported(
    agent: Agent, link: Link, module: MakeModule, source: str, code: str, what: str
) -> None:
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


async def test_a_handler_that_cannot_be_pickled_is_refused(agent: Agent, link: Link) -> None:
    def local() -> None: ...

    try:
        agent.command("work", run="process")(local)
    except (ConfigError, TypeError):
        return  # told when it is registered: better still
    await link.command("c1", "work")
    end = await link.end("c1")
    assert end.error is not None
    assert "module" in end.error.message
